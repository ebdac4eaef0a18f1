"""More small nets: concatenation, other dimensions, sharing, channels last, odd outputs."""

import torch
from tests.core.zoo import CLASSES, Net, conv_bn
from torch import Tensor, nn
from torch.nn import functional as F


class DenseLayer(nn.Module):
    """As torchvision writes it: the input is a tensor or a list of earlier features."""

    def __init__(self, cin):
        super().__init__()
        self.norm1, self.conv1 = nn.BatchNorm2d(cin), nn.Conv2d(cin, 8, 1, bias=False)
        self.norm2, self.conv2 = nn.BatchNorm2d(8), nn.Conv2d(8, 4, 3, 1, 1, bias=False)

    def forward(self, earlier):
        features = [earlier] if isinstance(earlier, Tensor) else earlier
        x = self.conv1(F.relu(self.norm1(torch.cat(features, 1))))
        return F.dropout(self.conv2(F.relu(self.norm2(x))), p=0.2, training=self.training)


class DenseNet(Net):
    def __init__(self):
        super().__init__()
        self.conv0 = nn.Conv2d(3, 8, 3, 1, 1, bias=False)
        self.block1 = nn.ModuleList(DenseLayer(8 + 4 * i) for i in range(3))
        self.transition = nn.Sequential(
            nn.BatchNorm2d(20), nn.ReLU(), nn.Conv2d(20, 10, 1, bias=False), nn.AvgPool2d(2)
        )
        self.block2 = nn.ModuleList(DenseLayer(10 + 4 * i) for i in range(2))
        self.norm, self.classifier = nn.BatchNorm2d(18), nn.Linear(18, CLASSES)

    def forward(self, x):
        features = [self.conv0(x)]
        for layer in self.block1:
            features.append(layer(features))
        x = self.transition(torch.cat(features, dim=1))
        for layer in self.block2:
            x = torch.cat((x, layer(x)), 1)
        x = F.relu(self.norm(x), inplace=True)
        return self.classifier(torch.flatten(F.adaptive_avg_pool2d(x, (1, 1)), 1))


class Inception(Net):
    def __init__(self):
        super().__init__()
        self.stem, self.one, self.two = conv_bn(3, 8), conv_bn(8, 4, 1), conv_bn(8, 4, 1)
        self.three = nn.Sequential(conv_bn(4, 6, 3), nn.Conv2d(6, 6, (1, 5), padding=(0, 2)))
        self.pooled, self.fc = conv_bn(8, 4, 1), nn.Linear(14, CLASSES)

    def forward(self, x):
        x = self.stem(x)
        pooled = self.pooled(F.max_pool2d(x, kernel_size=3, stride=1, padding=1))
        x = torch.concat([self.one(x), self.three(self.two(x)), pooled], dim=-3)
        return self.fc(x.amax(dim=(-1, -2)))


class UNet(Net):
    def __init__(self):
        super().__init__()
        self.down1, self.down2, self.mid = conv_bn(3, 6), conv_bn(6, 8), conv_bn(8, 10)
        self.up2, self.up1 = nn.ConvTranspose2d(10, 8, 2, 2), nn.ConvTranspose2d(8, 6, 2, 2)
        self.merge2, self.merge1 = conv_bn(16, 8), conv_bn(12, 6)
        self.head = nn.Linear(6, CLASSES)

    def forward(self, x):
        a = self.down1(x)
        b = self.down2(F.max_pool2d(a, 2))
        c = self.up2(self.mid(F.max_pool2d(b, 2)))
        c = self.merge2(torch.cat([b, c], 1))
        c = self.merge1(torch.cat([a, self.up1(c)], 1))
        return self.head(c.mean(-1).mean(-1))


class ConvNeXt(Net):
    """Channels last: LayerNorm over the channels, a layer scale, positions added at the start."""

    def __init__(self):
        super().__init__()
        self.stem, self.dwconv = nn.Conv2d(3, 8, 2, 2), nn.Conv2d(8, 8, 3, 1, 1, groups=8)
        self.position = nn.Parameter(torch.zeros(1, 8, 4, 4))
        self.norm, self.pwconv1, self.act = nn.LayerNorm(8), nn.Linear(8, 16), nn.GELU()
        self.pwconv2, self.gamma = nn.Linear(16, 8), nn.Parameter(1e-6 * torch.ones(8))
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x):
        x = self.stem(x) + self.position
        y = self.norm(self.dwconv(x).permute(0, 2, 3, 1))
        y = (self.gamma * self.pwconv2(self.act(self.pwconv1(y)))).permute(0, 3, 1, 2)
        return self.head((x + y).mean([-2, -1]))


class LayerNormMlp(Net):
    image = (6,)

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(6, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 10), nn.BatchNorm1d(10),
            nn.ELU(), nn.Linear(10, CLASSES), nn.LogSoftmax(dim=1),
        )  # fmt: skip

    def forward(self, x):
        return self.net(x)


class ShuffleNet(Net):
    """ShuffleNetV2: half of the channels pass, the halves are shuffled by reshape."""

    def __init__(self):
        super().__init__()
        self.stem, self.last = conv_bn(3, 16), conv_bn(16, 12, 1)
        self.branch = nn.Sequential(conv_bn(8, 8, 1), conv_bn(8, 8, groups=8), conv_bn(8, 8, 1))
        self.fc = nn.Linear(12, CLASSES)

    def forward(self, x):
        x1, x2 = self.stem(x).chunk(2, dim=1)
        x = torch.cat((x1, self.branch(x2)), dim=1)
        b, c, h, w = x.size()
        x = torch.transpose(x.view(b, 2, c // 2, h, w), 1, 2).contiguous().view(b, -1, h, w)
        return self.fc(self.last(x).mean([2, 3]))


class SharedConv(Net):
    """One convolution used twice, one more under two names, and parameters without use."""

    def __init__(self):
        super().__init__()
        self.stem, self.conv, self.bn = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3, 1, 1), conv_bn(8, 8)
        self.a = nn.Conv2d(8, 6, 1)
        self.b = nn.Conv2d(8, 6, 1)
        self.b.weight = self.a.weight
        self.unused, self.fc = nn.Linear(7, 3), nn.Linear(6, CLASSES)

    def forward(self, x):
        x = self.bn(self.conv(F.relu(self.conv(self.stem(x)))))
        return self.fc(F.max_pool2d(self.a(x) * torch.sigmoid(self.b(x)), 6).flatten(1))


class Conv1dNet(Net):
    image = (2, 16)

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv1d(2, 8, 5, padding=2), nn.PReLU(8), nn.MaxPool1d(2), nn.Dropout1d(0.1),
            nn.Conv1d(8, 8, 3, groups=4, padding="same"), nn.GLU(1), nn.AvgPool1d(2),
        )  # fmt: skip
        self.fc = nn.Linear(4 * 4, CLASSES)

    def forward(self, x):
        return self.fc(self.body(x).flatten(start_dim=1))


class Conv3dNet(Net):
    image = (1, 4, 6, 6)

    def __init__(self):
        super().__init__()
        self.conv1, self.bn = nn.Conv3d(1, 6, 3, padding=1), nn.BatchNorm3d(6)
        self.conv2 = nn.Conv3d(6, 8, (1, 3, 3), stride=(1, 2, 2), padding_mode="replicate")
        self.fc = nn.Linear(8, CLASSES)

    def forward(self, x):
        x = F.leaky_relu(self.conv2(F.max_pool3d(torch.tanh(self.bn(self.conv1(x))), 2)))
        return self.fc(x.mean(dim=(2, 3, 4)))


class Embedder(Net):
    """Token indices in, a table of features, a convolution over time."""

    def __init__(self):
        super().__init__()
        self.table, self.conv = nn.Embedding(11, 6), nn.Conv1d(6, 8, 3, padding=1)
        self.fc = nn.Linear(8, CLASSES)

    def example(self, batch: int = 2) -> Tensor:
        return torch.arange(batch * 7).reshape(batch, 7) % 11

    def forward(self, x):
        x = self.conv(self.table(x).transpose(1, 2)).relu()
        return self.fc(x.max(dim=-1)[0])


class Regularised(Net):
    """Dropped paths, an auxiliary head in training only, and a dictionary returned."""

    def __init__(self):
        super().__init__()
        self.stem, self.conv, self.drop = conv_bn(3, 8), conv_bn(8, 8), nn.Dropout2d(0.5)
        self.side, self.aux, self.fc = conv_bn(8, 6), nn.Linear(6, 3), nn.Linear(8, CLASSES)

    def forward(self, x):
        x = self.stem(x)
        y = self.drop(self.conv(x))
        if self.training:
            y = y * x.new_empty(len(x), 1, 1, 1).bernoulli_(0.8)
        out = {"logits": self.fc((x + y).mean((2, 3)))}
        if self.training:
            out["aux"] = self.aux(self.side(x).mean((2, 3)))
        return out


class PixelNet(Net):
    """Space to depth and back, a depth multiplier, torch's own channel shuffle."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.PixelUnshuffle(2), conv_bn(12, 8), nn.ChannelShuffle(2),
            nn.Conv2d(8, 16, 3, groups=8), nn.PixelShuffle(2), nn.ZeroPad2d(1),
            nn.InstanceNorm2d(4, affine=True), nn.ReLU(),
        )  # fmt: skip
        self.head = nn.Linear(4, CLASSES)

    def forward(self, x):
        return self.head(self.body(x)[..., ::2].sum((2, 3)))


class Resampled(Net):
    """Each channel by itself: learnt enlarging, and blurs by one filter for all of them."""

    def __init__(self):
        super().__init__()
        self.stem = conv_bn(3, 6, stride=2)
        self.up = nn.ConvTranspose2d(6, 6, 4, 2, 1, groups=6, bias=False)
        self.more = nn.ConvTranspose2d(6, 12, 2, groups=6)  # two of each
        self.mix, self.last = conv_bn(12, 8), conv_bn(8, 8)
        self.own = nn.Parameter(torch.ones(3, 3) / 9)
        self.register_buffer("filter", torch.tensor([1.0, 2, 1]).outer(torch.ones(3)) / 12)
        self.fc = nn.Linear(8, CLASSES)

    def blurred(self, x, kernel):
        kernel = kernel.expand(x.shape[1], 1, 3, 3)
        return F.conv2d(x, kernel.to(x), padding=1, groups=x.shape[1])

    def forward(self, x):
        x = self.mix(self.more(self.up(self.stem(x))))
        x = self.last(self.blurred(x, self.filter))
        return self.fc(self.blurred(x, self.own).mean((2, 3)))


ODD_NETS: list[type[Net]] = [
    DenseNet, Inception, UNet, ConvNeXt, LayerNormMlp, ShuffleNet, SharedConv, Conv1dNet, Conv3dNet,
    Embedder, Regularised, PixelNet, Resampled,
]  # fmt: skip
