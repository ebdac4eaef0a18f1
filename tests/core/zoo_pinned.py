"""Small nets with operations that have no channel rule, beside layers that can be cut.

`cut` are the groups that must be found in each, whatever stays full.
"""

import torch
from tests.core.zoo import CLASSES, Net, conv_bn
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations


class PinnedNet(Net):
    cut: tuple[str, ...] = ()


class ConvTransformer(PinnedNet):
    """A stem of convolutions, then torch's own transformer: only the tokens' width stays."""

    cut = ("stem.0.0", "encoder.layers.0.linear1")

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(conv_bn(3, 8, stride=2), nn.Conv2d(8, 12, 2, 2))
        layer = nn.TransformerEncoderLayer(12, 2, 16, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.fc = nn.Linear(12, CLASSES)

    def forward(self, x):
        return self.fc(self.encoder(self.stem(x).flatten(2).transpose(1, 2)).mean(1))


class Attention(PinnedNet):
    """nn.MultiheadAttention with a residual, and its weights looked at as well."""

    cut = ("stem.0", "mlp.0")

    def __init__(self):
        super().__init__()
        self.stem, self.patch = conv_bn(3, 8), nn.Conv2d(8, 12, 4, 4)
        self.norm, self.heads = nn.LayerNorm(12), nn.MultiheadAttention(12, 3, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(12, 10), nn.GELU(), nn.Linear(10, 12))
        self.fc = nn.Linear(12, CLASSES)

    def forward(self, x):
        x = self.patch(self.stem(x)).flatten(2).mT
        y = self.norm(x)
        y, weights = self.heads(y, y, y)
        x = x + y
        x = x + self.mlp(x)
        return self.fc((weights @ x).mean(1))


class Recurrent(PinnedNet):
    """An LSTM, then a GRU, over the columns of a feature map."""

    cut = ("stem.0", "mid")

    def __init__(self):
        super().__init__()
        self.stem, self.squeeze = conv_bn(3, 8), nn.Conv2d(8, 4, 1)
        self.lstm, self.gru = nn.LSTM(32, 6, batch_first=True), nn.GRU(6, 6, bidirectional=True)
        self.mid, self.fc = nn.Linear(12, 8), nn.Linear(8, CLASSES)

    def forward(self, x):
        x = self.squeeze(self.stem(x)).permute(0, 3, 1, 2).flatten(2)
        x, (h, _) = self.lstm(x)
        x, _ = self.gru((x + h[-1][:, None]).transpose(0, 1))
        return self.fc(self.mid(x[-1]).relu())


class Bag(PinnedNet):
    """A bag of tokens (levels of brightness), and a perceptron behind it."""

    cut = ("mid",)

    def __init__(self):
        super().__init__()
        self.bag, self.mid, self.fc = nn.EmbeddingBag(11, 6), nn.Linear(6, 8), nn.Linear(8, CLASSES)

    def forward(self, x):
        tokens = (4 * x.flatten(1) + 5).long().clamp(0, 10)
        return self.fc(self.mid(self.bag(tokens)).relu())


class SpatialTransformer(PinnedNet):
    """Features resampled where a small net of its own says."""

    cut = ("look.0.0", "body.0")

    def __init__(self):
        super().__init__()
        self.look = nn.Sequential(conv_bn(3, 6, stride=2), nn.Flatten(), nn.Linear(96, 6))
        self.stem, self.body, self.fc = conv_bn(3, 8), conv_bn(8, 8), nn.Linear(8, CLASSES)

    def forward(self, x):
        theta = 0.1 * self.look(x).view(-1, 2, 3) + torch.eye(2, 3, dtype=x.dtype)
        x = self.stem(x)
        x = F.grid_sample(x, F.affine_grid(theta, list(x.shape), False), align_corners=False)
        return self.fc(self.body(x).mean((2, 3)))


class Fourier(PinnedNet):
    """A filter in the frequency domain between two pairs of convolutions."""

    cut = ("stem.0", "widen", "last.0")

    def __init__(self):
        super().__init__()
        self.stem, self.widen, self.last = conv_bn(3, 8), nn.Conv2d(8, 6, 1), conv_bn(6, 8)
        self.filter, self.fc = nn.Parameter(torch.ones(6, 8, 5)), nn.Linear(8, CLASSES)

    def forward(self, x):
        x = self.widen(self.stem(x))
        x = torch.fft.irfft2(torch.fft.rfft2(x) * self.filter, s=x.shape[-2:])
        return self.fc(self.last(x).mean((2, 3)))


class Prototypes(PinnedNet):
    """Logits are distances to learnt points."""

    cut = ("stem.0",)

    def __init__(self):
        super().__init__()
        self.stem, self.conv = conv_bn(3, 8), nn.Conv2d(8, 6, 3)
        self.points = nn.Parameter(torch.randn(CLASSES, 6))

    def forward(self, x):
        return -torch.cdist(self.conv(self.stem(x)).mean((2, 3)), self.points)


class Writer(PinnedNet):
    """Writes into its activations and into room made for them, through views as well."""

    cut = ("stem.0", "inner", "last")

    def __init__(self):
        super().__init__()
        self.stem, self.conv, self.inner = conv_bn(3, 8), nn.Conv2d(8, 6, 1), nn.Conv2d(8, 8, 1)
        self.extra, self.last = nn.Conv2d(8, 4, 1), nn.Conv2d(10, 8, 1)
        self.fc = nn.Linear(8, CLASSES)

    def forward(self, x):
        x = self.stem(x)
        y = self.conv(x).clone()
        y[:, 0] = y[:, 1] * 2
        room = y.new_zeros(len(y), 10, *y.shape[2:])
        room[:, :6] = y
        room[:, 6:].copy_(self.extra(self.inner(x)))
        return self.fc(self.last(room).relu().mean((2, 3)))


class Inverted(PinnedNet):
    """A mask and its opposite."""

    cut = ("stem.0", "conv")

    def __init__(self):
        super().__init__()
        self.stem, self.conv, self.fc = conv_bn(3, 8), nn.Conv2d(8, 6, 3), nn.Linear(6, CLASSES)

    def forward(self, x):
        x = self.conv(self.stem(x))
        high = x > 0.1
        return self.fc(
            x.masked_fill(~high, 0).mean((2, 3)) - (x * torch.logical_not(high)).amax((2, 3))
        )


class WeightNorm(PinnedNet):
    """Weights of given length, in a convolution and in the last layer."""

    cut = ("stem.0",)

    def __init__(self):
        super().__init__()
        self.stem, self.mid = conv_bn(3, 8), conv_bn(8, 8)
        self.normed = parametrizations.weight_norm(nn.Conv2d(8, 6, 3))
        self.last = nn.Conv2d(6, 8, 3)
        self.fc = parametrizations.weight_norm(nn.Linear(8, CLASSES))

    def forward(self, x):
        x = self.last(self.normed(self.mid(self.stem(x))).relu())
        return self.fc(x.mean((2, 3)))


class SpectralNorm(PinnedNet):
    """Weights of spectral norm one: their buffers move in training."""

    cut = ("stem.0", "last")

    def __init__(self):
        super().__init__()
        self.stem, self.mid = conv_bn(3, 8), conv_bn(8, 8)
        self.normed = parametrizations.spectral_norm(nn.Conv2d(8, 6, 3))
        self.last, self.fc = nn.Conv2d(6, 8, 3), nn.Linear(8, CLASSES)

    def forward(self, x):
        x = self.last(self.normed(self.mid(self.stem(x))).relu())
        return self.fc(x.mean((2, 3)))


class StandardConv(nn.Conv2d):
    def forward(self, x):
        w = self.weight
        w = (w - w.mean((1, 2, 3), keepdim=True)) / (w.std((1, 2, 3), keepdim=True) + 1e-5)
        return F.conv2d(x, w, self.bias, self.stride, self.padding, self.dilation, self.groups)


class Standardised(PinnedNet):
    """Weight standardisation before a group norm, as in BiT."""

    cut = ("stem.0",)

    def __init__(self):
        super().__init__()
        self.stem, self.mid = conv_bn(3, 8), nn.Conv2d(8, 8, 3)
        self.conv, self.norm = StandardConv(8, 8, 3), nn.GroupNorm(4, 8)
        self.fc = nn.Linear(8, CLASSES)

    def forward(self, x):
        return self.fc(self.norm(self.conv(self.mid(self.stem(x)))).relu().mean((2, 3)))


class CosineLinear(nn.Linear):
    def forward(self, x):
        return 10 * F.linear(F.normalize(x), F.normalize(self.weight))


class CosineHead(PinnedNet):
    cut = ("stem.0",)

    def __init__(self):
        super().__init__()
        self.stem, self.conv = conv_bn(3, 8), nn.Conv2d(8, 6, 3)
        self.fc = CosineLinear(6, CLASSES, bias=False)

    def forward(self, x):
        return self.fc(self.conv(self.stem(x)).mean((2, 3)))


class TiedBack(PinnedNet):
    """The same matrix there and, transposed, back: both sides lose the same channels."""

    cut = ("stem.0", "conv", "there")

    def __init__(self):
        super().__init__()
        self.stem, self.conv = conv_bn(3, 8), nn.Conv2d(8, 6, 3)
        self.there, self.fc = nn.Linear(6, 8), nn.Linear(6, CLASSES)

    def forward(self, x):
        x = self.conv(self.stem(x)).mean((2, 3))
        return self.fc(F.linear(self.there(x).relu(), self.there.weight.t()))


PINNED_NETS: list[type[PinnedNet]] = [
    ConvTransformer, Attention, Recurrent, Bag, SpatialTransformer, Fourier, Prototypes, Writer,
    Inverted, WeightNorm, SpectralNorm, Standardised, CosineHead, TiedBack,
]  # fmt: skip
