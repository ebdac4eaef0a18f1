"""Nets that no method could cut, copy or train are refused in a line that says what to do."""

import threading
from typing import Any

import pytest
import torch
from tests.core import zoo
from tests.core.made import Made
from tests.core.test_channels import sizes, trace
from torch import nn

from dapperfl.core.channels import ChannelGraph
from dapperfl.errors import TraceError


def test_an_output_that_ignores_the_input_is_refused():
    class Constant(zoo.ResNet):
        def forward(self, x):
            return self.fc.bias.expand(len(x), -1)

    with pytest.raises(TraceError, match="does not depend on its input"):
        trace(Constant())


class Lazy(zoo.Net):
    """Layers that torch, or forward, builds when their inputs are known."""

    def __init__(self, *, known=False):
        super().__init__()
        self.body, self.fc = nn.LazyConv2d(8, 3), nn.LazyLinear(5)
        if known:
            self(self.example())

    def forward(self, x):
        return self.fc(self.body(x).mean((2, 3)))


def built_late(net, x):
    if not hasattr(net, "fc"):
        net.fc = nn.Linear(x[0].numel(), 5)
    return net.fc(x.flatten(1))


def test_layers_without_weights_are_refused_until_the_net_has_run():
    with pytest.raises(TraceError, match=r'"body\.weight" has no size yet; run the net once'):
        trace(Lazy())
    assert sizes(trace(Lazy(known=True))) == {"body": 8}
    example = torch.ones(1, 3, 8, 8)
    net = Made(built_late)
    with pytest.raises(TraceError, match=r'makes "fc.weight" while it runs; .* run the net once'):
        ChannelGraph.trace(net, example)
    net(example)
    assert ChannelGraph.trace(net, example).head == "fc"


@pytest.mark.parametrize(
    ("forward", "why"),
    [
        (lambda net, x: net.fc(x.flatten(1)), "mat1 and mat2 shapes cannot be multiplied"),
        (lambda net, x: net.missing(x), "no attribute 'missing'"),
        (lambda net, x: None, "returns a NoneType without tensors; .* must return logits"),
        (lambda net, x: torch.vmap(lambda z: net.fc(z[:, 0, 0]))(x), r"such as torch\.vmap"),
    ],
)
def test_a_net_that_does_not_run_or_hides_what_it_does_is_refused_in_a_line(forward, why):
    with pytest.raises(TraceError, match=why) as caught:
        ChannelGraph.trace(Made(forward, fc=nn.Linear(3, 5)), torch.ones(1, 3, 8, 8))
    assert "\n" not in str(caught.value)


def in_a_list(net):
    net.layers = [nn.Linear(3, 4)]
    return lambda net, x: net.fc(net.layers[0](x.mean((2, 3))))


def in_a_lambda(net):
    net.first = nn.Linear(3, 4)
    net.path = lambda x: net.first(x).relu()
    return lambda net, x: net.fc(net.path(x.mean((2, 3))))


@pytest.mark.parametrize("hidden", [in_a_list, in_a_lambda])
def test_layers_that_no_copy_of_the_net_would_train_are_refused(hidden):
    net: Any = Made(lambda net, x: x, fc=nn.Linear(4, 5))
    net.function = hidden(net)
    with pytest.raises(TraceError, match=r'shape \(4, 3\) in "linear" .* is not the net\'s own'):
        ChannelGraph.trace(net, torch.ones(1, 3, 8, 8))
    for layer in getattr(net, "layers", net.children()):
        layer.requires_grad_(layer is net.fc)
    assert ChannelGraph.trace(net, torch.ones(1, 3, 8, 8)).head == "fc"


def test_a_hook_that_copies_of_the_net_share_is_named():
    net: Any = Made(lambda net, x: net.fc(net.a(x.mean((2, 3))) + net.seen["a"]))
    net.a, net.fc, net.seen = nn.Linear(3, 4), nn.Linear(4, 5), {}
    net.a.register_forward_pre_hook(lambda *_: net.seen.update(a=torch.ones(2, 4)))
    with pytest.raises(TraceError, match=r'share the hook of "a".* make it a method of the net'):
        ChannelGraph.trace(net, torch.ones(1, 3, 8, 8))


class Noted(zoo.ResNet):
    def get_extra_state(self):
        return {"version": 2}


class Filtered(zoo.ResNet):
    def state_dict(self, *args, **kwargs):
        return {n: t for n, t in super().state_dict(*args, **kwargs).items() if n != "fc.bias"}


@pytest.mark.parametrize(
    ("cls", "why"),
    [
        (Noted, 'has "_extra_state", .* keep it in a buffer'),
        (Filtered, 'lacks the parameter "fc.bias"'),
    ],
)
def test_a_state_that_is_not_the_parameters_and_buffers_is_refused(cls, why):
    with pytest.raises(TraceError, match=why):
        trace(cls())


def test_a_net_that_copies_itself_is_refused():
    class Copies(zoo.ResNet):
        def __deepcopy__(self, memo):
            twin = Copies()
            twin.load_state_dict(self.state_dict())
            return twin

    with pytest.raises(TraceError, match=r"copies itself in its own way \(__deepcopy__\)"):
        trace(Copies())
    net = zoo.PreActResNet()
    graph = ChannelGraph.trace(torch.fx.symbolic_trace(net), net.example())  # copies as it should
    assert sizes(graph) == sizes(trace(net))


def test_a_net_that_cannot_be_copied_is_refused():
    net = zoo.ResNet()
    vars(net)["lock"] = threading.Lock()
    with pytest.raises(TraceError, match="cannot be copied: cannot pickle"):
        trace(net)


def test_complex_parameters_are_refused_and_complex_or_integer_constants_are_not():
    net = Made(lambda net, x: net.fc((x.mean((2, 3)) * net.turn).real), fc=nn.Linear(3, 5))
    net.turn = nn.Parameter(torch.ones(3, dtype=torch.complex64))
    with pytest.raises(TraceError, match=r'"turn" is complex, .* torch\.view_as_complex'):
        ChannelGraph.trace(net, torch.ones(1, 3, 8, 8))
    del net.turn
    net.register_buffer("turn", torch.ones(3, dtype=torch.complex64))
    net.count = nn.Parameter(torch.zeros(1, dtype=torch.int64), requires_grad=False)
    assert ChannelGraph.trace(net, torch.ones(1, 3, 8, 8)).head == "fc"


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
def test_a_scripted_net_is_refused():
    with pytest.raises(TraceError, match="plain module"):
        ChannelGraph.trace(torch.jit.script(nn.Linear(3, 5)), torch.zeros(1, 3))


def test_a_compiled_net_is_refused():
    compiled = torch.compile(nn.Linear(3, 5), backend="eager")
    assert isinstance(compiled, nn.Module)
    with pytest.raises(TraceError, match=r"compiled anew .* plain module, before torch\.compile"):
        ChannelGraph.trace(nn.Sequential(compiled), torch.zeros(1, 3))


@pytest.mark.parametrize("always", [True, False])
def test_state_that_changes_its_size_is_refused_and_caches_are_not(always):
    def forward(net, x):
        if net.training or always:
            net.scale = torch.ones(3)
        net.cache = torch.ones(3)
        return net.fc(x * net.scale * net.cache)

    net = Made(forward, fc=nn.Linear(3, 5))
    net.register_buffer("cache", torch.ones(1), persistent=False)
    net.register_buffer("scale", torch.ones(3))
    assert ChannelGraph.trace(net, torch.zeros(1, 3)).head == "fc"
    net.scale = torch.ones(1)
    with pytest.raises(TraceError, match=r'size of "scale" from \(1,\) to \(3,\) .* run it once'):
        ChannelGraph.trace(net, torch.zeros(1, 3))


@pytest.mark.parametrize(("dtype", "said"), [(torch.int64, True), (torch.float32, False)])
def test_integers_that_training_changes_are_named(dtype, said, caplog):
    def forward(net, x):
        if net.training:
            net.seen += 1
        return net.fc(x)

    net = Made(forward, fc=nn.Linear(3, 5), norm=nn.BatchNorm1d(3))
    net.register_buffer("seen", torch.zeros((), dtype=dtype))
    ChannelGraph.trace(net, torch.zeros(1, 3))
    told = [each for each in caplog.messages if '"seen" changes while the net trains' in each]
    assert len(told) == int(said)
    assert not dict(net.named_buffers())["seen"].any()  # the net that was given is left alone
