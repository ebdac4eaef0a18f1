"""Small nets in the styles people write them: families of image nets built from modules.

Each is a class without arguments; `image` is the shape of one input. More are in
`zoo_functional` (functional forms and hand-written operations) and `zoo_odd` (everything else).
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

CLASSES = 5


class Net(nn.Module):
    """What all animals of the zoo share."""

    image: tuple[int, ...] = (3, 8, 8)

    def example(self, batch: int = 2) -> Tensor:
        """Return a batch of inputs."""
        rng = torch.Generator().manual_seed(7)
        dtype = next(self.parameters()).dtype
        return torch.randn(batch, *self.image, generator=rng, dtype=torch.float64).to(dtype)


def conv_bn(cin, cout, k=3, stride=1, groups=1, act=nn.ReLU):
    conv = nn.Conv2d(cin, cout, k, stride, k // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(cout), act())


class BasicBlock(nn.Module):
    def __init__(self, cin, cout, stride, norm):
        super().__init__()
        self.conv1 = nn.Conv2d(cin, cout, 3, stride, 1, bias=False)
        self.bn1 = norm(cout)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(cout, cout, 3, 1, 1, bias=False)
        self.bn2 = norm(cout)
        self.downsample = None
        if stride != 1 or cin != cout:
            self.downsample = nn.Sequential(nn.Conv2d(cin, cout, 1, stride), norm(cout))

    def forward(self, x):
        identity = x
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        if self.downsample is not None:
            identity = self.downsample(x)
        out += identity
        return self.relu(out)


class Bottleneck(nn.Module):
    def __init__(self, cin, cout, stride, groups):
        super().__init__()
        mid = cout // 2
        self.conv1, self.bn1 = nn.Conv2d(cin, mid, 1, bias=False), nn.BatchNorm2d(mid)
        self.conv2 = nn.Conv2d(mid, mid, 3, stride, 1, groups=groups, bias=False)
        self.bn2 = nn.BatchNorm2d(mid)
        self.conv3, self.bn3 = nn.Conv2d(mid, cout, 1, bias=False), nn.BatchNorm2d(cout)
        self.downsample = nn.Sequential(nn.Conv2d(cin, cout, 1, stride), nn.BatchNorm2d(cout))

    def forward(self, x):
        out = F.relu(self.bn1(self.conv1(x)))
        out = F.relu(self.bn2(self.conv2(out)))
        return F.relu(self.bn3(self.conv3(out)) + self.downsample(x))


class ResNet(Net):
    """A residual net with a pooled stem, as torchvision writes it."""

    def __init__(self, norm=nn.BatchNorm2d):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 8, 7, 2, 3, bias=False), norm(8)
        self.relu, self.maxpool = nn.ReLU(inplace=True), nn.MaxPool2d(3, 1, 1)
        self.layer1 = nn.Sequential(*(BasicBlock(8, 8, 1, norm) for _ in range(2)))
        self.layer2 = nn.Sequential(BasicBlock(8, 16, 2, norm), BasicBlock(16, 16, 1, norm))
        self.avgpool, self.fc = nn.AdaptiveAvgPool2d((1, 1)), nn.Linear(16, CLASSES)

    def forward(self, x):
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer2(self.layer1(x))
        return self.fc(torch.flatten(self.avgpool(x), 1))


class GroupNormResNet(ResNet):
    def __init__(self):
        super().__init__(lambda channels: nn.GroupNorm(4, channels))


class ChannelNormResNet(ResNet):
    def __init__(self):
        super().__init__(lambda channels: nn.GroupNorm(channels, channels))


class OneGroupResNet(ResNet):
    def __init__(self):
        super().__init__(lambda channels: nn.GroupNorm(1, channels))


class InstanceNormResNet(ResNet):
    def __init__(self):
        super().__init__(nn.InstanceNorm2d)


class BottleneckResNet(Net):
    groups = 1

    def __init__(self):
        super().__init__()
        self.stem = conv_bn(3, 8)
        self.body = nn.Sequential(
            Bottleneck(8, 16, 1, self.groups), Bottleneck(16, 16, 2, self.groups)
        )
        self.fc = nn.Linear(16, CLASSES)

    def forward(self, x):
        return self.fc(self.body(self.stem(x)).mean((2, 3)))


class ResNeXt(BottleneckResNet):
    groups = 4


class PreActResNet(Net):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(8) for _ in range(4))
        self.convs = nn.ModuleList(nn.Conv2d(8, 8, 3, 1, 1, bias=False) for _ in range(4))
        self.last, self.head = nn.BatchNorm2d(8), nn.Linear(8, CLASSES)

    def forward(self, x):
        x = self.stem(x)
        for i in (0, 2):
            out = self.convs[i](F.relu(self.norms[i](x)))
            x = x + self.convs[i + 1](F.relu(self.norms[i + 1](out)))
        x = F.relu(self.last(x))
        return self.head(F.adaptive_avg_pool2d(x, 1).squeeze(-1).squeeze(-1))


class Lambda(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


class PaddedShortcut(Net):
    """CIFAR's option A: the identity grows by channels of zeros."""

    def __init__(self):
        super().__init__()
        self.stem, self.conv1 = conv_bn(3, 8), conv_bn(8, 16, stride=2)
        self.conv2 = conv_bn(16, 16, act=nn.Identity)
        self.shortcut = Lambda(lambda x: F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 4, 4), value=0))
        self.linear = nn.Linear(16, CLASSES)

    def forward(self, x):
        x = self.stem(x)
        out = self.conv2(self.conv1(x))
        out += self.shortcut(x)
        out = F.avg_pool2d(F.relu(out), out.size()[3])
        return self.linear(out.view(out.size(0), -1))


class ZerosShortcut(PaddedShortcut):
    def __init__(self):
        super().__init__()
        self.shortcut = Lambda(self.grow)

    @staticmethod
    def grow(x):
        x = F.avg_pool2d(x, 2)
        return torch.cat([x, x.new_zeros(x.size(0), 8, x.size(2), x.size(3))], dim=1)


class Vgg(Net):
    norm = True

    def __init__(self):
        super().__init__()
        layers: list[nn.Module] = []
        cin = 3
        for width in (8, "M", 12, 12, "M"):
            if isinstance(width, str):
                layers.append(nn.MaxPool2d(2, 2))
                continue
            layers.append(nn.Conv2d(cin, width, 3, padding=1))
            layers += [nn.BatchNorm2d(width)] if self.norm else []
            layers.append(nn.ReLU(True))
            cin = width
        self.features, self.avgpool = nn.Sequential(*layers), nn.AdaptiveAvgPool2d((2, 2))
        self.classifier = nn.Sequential(
            nn.Linear(12 * 2 * 2, 16), nn.ReLU(True), nn.Dropout(), nn.Linear(16, 8), nn.ReLU(True),
            nn.Dropout(0.3), nn.Linear(8, CLASSES),
        )  # fmt: skip

    def forward(self, x):
        x = torch.flatten(self.avgpool(self.features(x)), 1)
        return self.classifier(x)


class PlainVgg(Vgg):
    norm = False


class SqueezeExcite(nn.Module):
    """With linear layers, as SENet's authors write it."""

    def __init__(self, channels):
        super().__init__()
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Sequential(
            nn.Linear(channels, 4, bias=False), nn.ReLU(), nn.Linear(4, channels), nn.Sigmoid()
        )

    def forward(self, x):
        b, c, _, _ = x.size()
        y = self.fc(self.pool(x).view(b, c)).view(b, c, 1, 1)
        return x * y.expand_as(x)


class ConvSqueezeExcite(nn.Module):
    """With 1x1 convolutions, as MobileNetV3 and EfficientNet do."""

    def __init__(self, channels, gate):
        super().__init__()
        self.reduce, self.expand = nn.Conv2d(channels, 4, 1), nn.Conv2d(4, channels, 1)
        self.gate = gate

    def forward(self, x):
        s = F.relu(self.reduce(x.mean((2, 3), keepdim=True)), inplace=True)
        return self.gate(self.expand(s)) * x


class InvertedResidual(nn.Module):
    def __init__(self, cin, cout, stride, act, excite=None):
        super().__init__()
        mid = 2 * cin
        self.use_res_connect = stride == 1 and cin == cout
        self.conv = nn.Sequential(
            conv_bn(cin, mid, 1, act=act), conv_bn(mid, mid, 3, stride, groups=mid, act=act),
            ConvSqueezeExcite(mid, excite) if excite else nn.Identity(),
            nn.Conv2d(mid, cout, 1, bias=False), nn.BatchNorm2d(cout),
        )  # fmt: skip

    def forward(self, x):
        return x + self.conv(x) if self.use_res_connect else self.conv(x)


class MobileNetV2(Net):
    act: type[nn.Module] = nn.ReLU6
    excite: nn.Module | None = None

    def __init__(self):
        super().__init__()
        blocks = (
            InvertedResidual(i, o, s, self.act, self.excite)
            for i, o, s in ((8, 8, 1), (8, 12, 2), (12, 12, 1))
        )
        self.features = nn.Sequential(
            conv_bn(3, 8, act=self.act), *blocks, conv_bn(12, 16, 1, act=self.act)
        )
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(16, CLASSES))

    def forward(self, x):
        x = nn.functional.adaptive_avg_pool2d(self.features(x), (1, 1))
        return self.classifier(x.reshape(x.shape[0], -1))


class MobileNetV3(MobileNetV2):
    act, excite = nn.Hardswish, nn.Hardsigmoid()


class EfficientNet(MobileNetV2):
    act, excite = nn.SiLU, nn.Sigmoid()


class SeResNet(Net):
    def __init__(self):
        super().__init__()
        self.stem, self.conv1, self.conv2 = conv_bn(3, 8), conv_bn(8, 8), conv_bn(8, 8)
        self.se, self.fc = SqueezeExcite(8), nn.Linear(8, CLASSES)

    def forward(self, x):
        x = self.stem(x)
        x = torch.relu(torch.add(self.se(self.conv2(self.conv1(x))), x))
        return self.fc(x.mean([2, 3]))


SQUARE_NETS: list[type[Net]] = [
    ResNet, GroupNormResNet, ChannelNormResNet, OneGroupResNet, InstanceNormResNet,
    BottleneckResNet, ResNeXt, PreActResNet, PaddedShortcut, ZerosShortcut, Vgg, PlainVgg,
    MobileNetV2, MobileNetV3, EfficientNet, SeResNet,
]  # fmt: skip
