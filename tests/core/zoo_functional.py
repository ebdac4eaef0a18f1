"""More small nets: functional forms, hand-written operations, and ways to flatten."""

import operator

import torch
from tests.core.zoo import CLASSES, Net, conv_bn
from torch import Tensor, nn
from torch.nn import functional as F


class Tutorial(Net):
    """The first CNN everyone writes, with the flattened size as a number in the code."""

    image = (3, 12, 12)

    def __init__(self):
        super().__init__()
        self.conv1, self.pool = nn.Conv2d(3, 6, 3), nn.MaxPool2d(2, 2)
        self.conv2, self.fc1 = nn.Conv2d(6, 8, 2), nn.Linear(8 * 2 * 2, 12)
        self.fc2, self.fc3 = nn.Linear(12, 10), nn.Linear(10, CLASSES)

    def forward(self, x):
        x = self.pool(F.relu(self.conv1(x)))
        x = self.pool(F.relu(self.conv2(x)))
        x = x.view(-1, 8 * 2 * 2)
        x = F.relu(self.fc1(x))
        x = F.dropout(F.relu(self.fc2(x)))  # without training=: noisy in evaluation as well
        return F.log_softmax(self.fc3(x), dim=1)


class Flattened(Net):
    """A map of several positions that is flattened, then normalised as a vector."""

    mean: Tensor
    std: Tensor

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.tensor([0.4, 0.5, 0.6]).view(1, 3, 1, 1))
        self.register_buffer("std", torch.full((3,), 0.2), persistent=False)
        self.conv, self.norm = nn.Conv2d(3, 6, 3, 2), nn.BatchNorm1d(54)
        self.body = nn.Sequential(nn.Flatten(), nn.Identity(), nn.Dropout(0.2))
        self.fc1, self.fc2 = nn.Linear(54, 8), nn.Linear(8, CLASSES, bias=False)

    def forward(self, x):
        x = (x - self.mean) / self.std[None, :, None, None]
        x = self.norm(self.body(self.conv(x).relu_()))
        return self.fc2(self.fc1(x).clamp(min=0))


class Functional(Net):
    """No layer modules at all: parameters and torch.nn.functional, some by keyword."""

    running_mean: Tensor
    running_var: Tensor

    def __init__(self):
        super().__init__()
        self.w1, self.b1 = nn.Parameter(torch.randn(8, 3, 3, 3) / 5), nn.Parameter(torch.zeros(8))
        self.g1, self.g2 = nn.Parameter(torch.ones(8)), nn.Parameter(torch.zeros(8))
        self.register_buffer("running_mean", torch.zeros(8))
        self.register_buffer("running_var", torch.ones(8))
        self.dw = nn.Parameter(torch.randn(8, 1, 3, 3) / 3)
        self.w2 = nn.Parameter(torch.randn(12, 8, 1, 1) / 3)
        self.g3 = nn.ParameterList([torch.ones(12), torch.zeros(12)])
        self.w3, self.b3 = nn.Parameter(torch.randn(10, 12) / 3), nn.Parameter(torch.zeros(10))
        self.w4, self.b4 = nn.Parameter(torch.randn(10, CLASSES)), nn.Parameter(torch.ones(CLASSES))

    def forward(self, x):
        x = F.conv2d(input=x, weight=self.w1, bias=self.b1, padding=1)
        x = F.batch_norm(
            x, self.running_mean, self.running_var, self.g1, self.g2, training=self.training
        )
        x = F.max_pool2d(F.relu(x, inplace=True), 2)
        x = x + F.conv2d(x, self.dw, padding=1, groups=x.shape[1])
        x = F.conv2d(x, self.w2)
        x = F.group_norm(x, x.shape[1] // 3, weight=self.g3[0], bias=self.g3[1])
        x = F.adaptive_avg_pool2d(F.dropout(x, 0.5, self.training), output_size=1)
        x = F.linear(x.flatten(1), weight=self.w3, bias=self.b3)
        return torch.relu(x) @ self.w4 + self.b4


class FixedNumbers(Net):
    """Counts of channels written in the code: only what does not meet them can be cut."""

    def __init__(self):
        super().__init__()
        self.w1, self.w2 = (
            nn.Parameter(torch.randn(8, 3, 3, 3)),
            nn.Parameter(torch.ones(8, 1, 3, 3)),
        )
        self.conv, self.split, self.fc = nn.Conv2d(8, 6, 1), conv_bn(6, 8), nn.Linear(6, CLASSES)
        self.left, self.right = nn.Conv2d(3, 6, 1), nn.Conv2d(5, 6, 1)

    def forward(self, x):
        x = F.conv2d(F.conv2d(x, self.w1), self.w2, groups=8)
        x = self.split(self.conv(F.group_norm(x, 4)))
        return self.fc((self.left(x[:, :3]) + self.right(x.narrow(1, 3, 5))).mean((2, 3)))


class Computed(Net):
    """Weights that are computed entry by entry: scaled, masked, with gains, transposed, cast."""

    mask: Tensor

    def __init__(self):
        super().__init__()
        self.w1, self.w2 = (nn.Parameter(torch.randn(8, i, 3, 3) / 5) for i in (3, 8))
        self.register_buffer("mask", (torch.rand(8, 8, 3, 3) > 0.3).float())
        self.dw, self.gain = nn.Parameter(torch.randn(8, 1, 3, 3)), nn.Parameter(torch.ones(8))
        self.w3, self.b3 = nn.Parameter(torch.randn(8, 10) / 3), nn.Parameter(torch.zeros(10))
        self.code, self.fc = nn.Linear(10, 6), nn.Linear(10, CLASSES)

    def forward(self, x):
        x = F.conv2d(x, self.w1 * 0.5, padding=1).relu()
        x = F.conv2d(x, self.mask * self.w2.tanh(), padding=1)
        x = F.conv2d(x, self.gain[:, None, None, None] * self.dw, groups=x.shape[1])
        x = F.linear(x.mean((2, 3)), self.w3.mT.to(x), self.b3.to(x)).relu()
        return self.fc(F.linear(self.code(x).relu(), self.code.weight.t()))


class Scaled(Net):
    """Learnt vectors that are reshaped before use: a frozen batch norm, layer scales, a slope."""

    weight: Tensor
    bias: Tensor
    mean: Tensor
    var: Tensor

    def __init__(self):
        super().__init__()
        self.conv1, self.conv2, self.conv3 = (nn.Conv2d(i, 8, 3, 1, 1) for i in (3, 8, 8))
        for name in ("weight", "bias", "mean", "var"):
            self.register_buffer(name, torch.rand(8) + 0.5)
        self.gamma, self.beta = nn.Parameter(torch.ones(8, 1, 1)), nn.Parameter(torch.zeros(8))
        self.log_scale, self.temperature = nn.Parameter(torch.zeros(8)), nn.Parameter(torch.ones(1))
        self.fc = nn.Linear(8, CLASSES)

    def forward(self, x):
        scale = self.weight.reshape(1, -1, 1, 1) * (self.var.view(1, -1, 1, 1) + 1e-5).rsqrt()
        x = self.conv1(x) * scale + (self.bias - self.mean)[:, None, None]
        x = self.conv2(x.relu()) * self.gamma + self.beta.unsqueeze(-1).unsqueeze(-1)
        x = self.conv3(x) * self.log_scale.exp().view(1, 8, 1, 1)
        x = (x - x.mean((2, 3), keepdim=True)) / (x.var((2, 3), keepdim=True) + 1e-3).sqrt()
        return self.fc(x.abs().flatten(2).mean(-1)) / self.temperature


class Attentive(Net):
    """Gates of every kind: over channels, over positions, over both, in place."""

    def __init__(self):
        super().__init__()
        self.conv1, self.conv2, self.conv3 = conv_bn(3, 8), conv_bn(8, 8), conv_bn(8, 10)
        self.mlp = nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 8))
        self.spatial, self.gate = nn.Conv2d(2, 1, 3, padding=1), nn.Conv2d(10, 10, 1)
        self.fc = nn.Linear(10, CLASSES)

    def forward(self, x):
        x = self.conv1(x)
        y = self.mlp(F.avg_pool2d(x, x.shape[-1])[..., 0, 0]) + self.mlp(x.amax((2, 3)))
        x = x * y.sigmoid()[:, :, None, None]
        x = self.conv2(x)
        pooled = torch.cat([x.mean(1, keepdim=True), x.max(1, keepdim=True)[0]], 1)
        x = x * torch.sigmoid(self.spatial(pooled))
        x = self.conv3(x)
        x = x.clone().mul_(torch.sigmoid(self.gate(x)).expand_as(x))
        return self.fc(x.mean((2, 3)))


class InPlace(Net):
    """Residual adds in every spelling, in place and on tensors that are used again."""

    def __init__(self):
        super().__init__()
        self.stem, self.fc = conv_bn(3, 8), nn.Linear(16, CLASSES)
        self.convs = nn.ModuleList(nn.Conv2d(8, 8, 3, 1, 1) for _ in range(5))
        self.inner = nn.Conv2d(8, 8, 1)

    def forward(self, x):
        x = self.stem(x)
        kept = x.clone()
        x = operator.add(x, self.convs[0](x))
        x = torch.add(x, self.convs[1](self.inner(x)), alpha=0.5)
        y = self.convs[2](x)
        y.add_(x)
        y += self.convs[3](y.clone())
        y = sum([y, self.convs[4](y)])
        return self.fc(torch.cat((y, kept), 1).mean((2, 3)).float().to(x.dtype))


class Reshaped(Net):
    """Reshapes there and back, swapped axes, stacked and repeated channels, several outputs."""

    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = conv_bn(3, 6), nn.Conv2d(12, 6, 3, padding=1, bias=False)
        self.position = nn.Linear(6, 6, bias=False)
        self.fc = nn.Linear(6 * 16, CLASSES)

    def forward(self, x):
        x = self.conv1(x)
        x = x.flatten(1).unflatten(1, x.shape[1:]).repeat(1, 2, 1, 1)
        x, where = F.max_pool2d(self.conv2(x), 2, return_indices=True)
        x = x + 0 * where
        x = self.position(x.movedim(1, -1)).movedim(-1, 1).transpose(-1, -2)
        return self.fc(x.flatten(1)), x.flip(-1).square().mean((2, 3))


FUNCTIONAL_NETS: list[type[Net]] = [
    Tutorial, Flattened, Functional, FixedNumbers, Computed, Scaled, Attentive, InPlace, Reshaped
]  # fmt: skip
