"""More small nets: activations multiplied with each other, and norms and filters of positions."""

import torch
from tests.core.zoo import CLASSES, Net, conv_bn
from torch import Tensor, nn
from torch.nn import functional as F


class Attention(nn.Module):
    """Two heads, as timm writes them before fused kernels."""

    def __init__(self, dim):
        super().__init__()
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x):
        b, n, c = x.shape
        q, k, v = self.qkv(x).reshape(b, n, 3, 2, c // 2).permute(2, 0, 3, 1, 4)
        weights = (q @ k.transpose(-2, -1) * (c // 2) ** -0.5).softmax(dim=-1)
        return self.proj((weights @ v).transpose(1, 2).reshape(b, n, c))


class VisionTransformer(Net):
    def __init__(self):
        super().__init__()
        self.patch = nn.Conv2d(3, 8, 4, 4)
        self.token, self.position = (nn.Parameter(torch.zeros(1, n, 8)) for n in (1, 5))
        self.norm1, self.attn, self.norm2 = nn.LayerNorm(8), Attention(8), nn.LayerNorm(8)
        self.mlp = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, CLASSES)

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.position
        x = x + self.attn(self.norm1(x))
        x = x + self.mlp(self.norm2(x))
        return self.head(self.norm(x)[:, 0])


class FusedAttention(Net):
    """Queries of a learnt vector: they need no gradient of an image."""

    def __init__(self):
        super().__init__()
        self.stem, self.key, self.value = conv_bn(3, 8), nn.Linear(8, 6), nn.Linear(8, 10)
        self.query, self.fc = nn.Parameter(torch.rand(1, 2, 6)), nn.Linear(20, CLASSES)

    def forward(self, x):
        x = self.stem(x).flatten(2).transpose(1, 2)
        query = self.query.expand(len(x), -1, -1)
        x = F.scaled_dot_product_attention(query, self.key(x), value=self.value(x))
        return self.fc(x.flatten(1))


class NonLocal(Net):
    """Positions that look at each other, as Wang et al. write it; one side stops gradients."""

    def __init__(self):
        super().__init__()
        self.stem, self.last, self.fc = conv_bn(3, 8), conv_bn(8, 8), nn.Linear(8, CLASSES)
        self.theta, self.phi, self.g = (nn.Conv2d(8, 4, 1) for _ in range(3))
        self.out = nn.Conv2d(4, 8, 1)

    def forward(self, x):
        x = self.stem(x)
        b, _, h, w = x.shape
        theta, phi = self.theta(x).flatten(2), self.phi(F.max_pool2d(x.detach(), 2)).flatten(2)
        f = torch.matmul(theta.transpose(1, 2), phi) / phi.shape[-1]
        g = self.g(F.max_pool2d(x, 2)).flatten(2).transpose(1, 2)
        y = torch.bmm(f, g).transpose(1, 2).reshape(b, -1, h, w)
        return self.fc(self.last(x + self.out(y)).mean((2, 3)))


class EinsumAttention(Net):
    """Attention and a projection in Einstein's notation."""

    def __init__(self):
        super().__init__()
        self.stem, self.fc = conv_bn(3, 8), nn.Linear(6, CLASSES)
        self.q, self.k, self.v = (nn.Conv2d(8, 8, 1, bias=False) for _ in range(3))
        self.w = nn.Parameter(torch.randn(2, 4, 6) / 3)

    def forward(self, x):
        x = self.stem(x)
        q, k, v = (f(x).flatten(2).unflatten(1, (2, 4)) for f in (self.q, self.k, self.v))
        weights = torch.einsum("bhci,bhcj->bhij", q, k).softmax(-1)
        return self.fc(torch.einsum("bhij,bhcj,hcd->bid", weights, v, self.w).mean(1))


class MatrixGates(Net):
    """Gates made and applied by matrix products in every spelling."""

    def __init__(self):
        super().__init__()
        self.stem, self.conv = conv_bn(3, 8), conv_bn(8, 6)
        self.fc1, self.fc2 = nn.Linear(6, 8), nn.Linear(8, CLASSES)
        self.w1, self.w2 = nn.Parameter(torch.randn(4, 8) / 3), nn.Parameter(torch.randn(4, 6) / 3)
        self.b = nn.Parameter(torch.zeros(6))

    def forward(self, x):
        x = self.stem(x)
        z = torch.relu(x.mean((2, 3)) @ self.w1.t())
        gate = torch.addmm(self.b, z, self.w2).sigmoid()
        x = self.conv(x).flatten(2)
        gates = torch.eye(x.shape[1], dtype=x.dtype) * gate[:, None]
        x = torch.baddbmm(x, gates, x)
        x = torch.tensordot(x, torch.ones(x.shape[-1]).to(x), dims=1)
        return self.fc2(self.fc1(x).relu())


class PositionNorms(Net):
    """Norms over positions, whose work is as much as there are channels; a blur; fixed colours."""

    image = (4, 16)
    blur: Tensor
    colours: Tensor

    def __init__(self):
        super().__init__()
        self.register_buffer("colours", torch.rand(3, 4, 1))
        self.register_buffer("blur", torch.rand(8, 1, 3), persistent=False)
        self.conv1, self.norm1 = nn.Conv1d(3, 8, 3, padding=1), nn.LayerNorm(16)
        self.conv2, self.norm2 = nn.Conv1d(8, 6, 3, padding=1), nn.LayerNorm((4, 4))
        self.fc = nn.Linear(6, CLASSES)

    def forward(self, x):
        x = F.conv1d(x, self.colours)
        x = self.norm1(self.conv1(x))
        x = F.conv1d(x, self.blur, padding=1, groups=self.blur.shape[0]).relu()
        return self.fc(self.norm2(self.conv2(x).unflatten(2, (4, 4))).amax((2, 3)))


ATTENTIVE_NETS: list[type[Net]] = [
    VisionTransformer, FusedAttention, NonLocal, EinsumAttention, MatrixGates, PositionNorms
]  # fmt: skip
