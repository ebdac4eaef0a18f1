"""A cut net is the masked net: in outputs, in gradients, and after steps of training."""

import copy
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.zoo import GroupNormResNet, MobileNetV2, ResNet
from tests.core.zoo_cuts import ZOO, build, draw, graph_of, loss_of, run, smallest
from torch import nn

from dapperfl.core.calls import tensors_in
from dapperfl.core.channels import ChannelGraph
from dapperfl.core.rng import generator
from dapperfl.core.scores import random_scores
from dapperfl.core.submodel import Submodel
from dapperfl.errors import BudgetError, MessageError

every_net = pytest.mark.parametrize("cls", ZOO, ids=[cls.__name__ for cls in ZOO])


def assert_same(small, large):
    assert small.keys() == large.keys()
    for name, tensor in small.items():
        assert torch.allclose(tensor, large[name], rtol=1e-9, atol=1e-9), name


def train(net, x, *, steps=4, again=lambda net, momentum: None):
    optimiser = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-2)
    names = dict(net.named_parameters())
    for _ in range(steps):
        optimiser.zero_grad()
        loss_of(net, x).backward()
        optimiser.step()
        momentum = {n: optimiser.state[p].get("momentum_buffer") for n, p in names.items()}
        again(net, {n: buffer for n, buffer in momentum.items() if buffer is not None})


def check_masked_is_shrunk(cls, submodel):
    """Compare the two in evaluation, in training mode, in gradients and after steps."""
    net = build(cls)
    x = net.example(4)
    masked = copy.deepcopy(net)
    masked.load_state_dict(submodel.mask(net.state_dict()))
    small = submodel.shrink(net)
    for mode in (False, True):
        for ours, theirs in zip(run(small.train(mode), x), run(masked.train(mode), x), strict=True):
            assert ours.shape == theirs.shape
            assert torch.allclose(ours, theirs, rtol=1e-9, atol=1e-9)
    loss_of(small, x).backward()
    loss_of(masked, x).backward()
    gradients = {n: p.grad for n, p in masked.named_parameters() if p.grad is not None}
    assert_same(
        {n: p.grad for n, p in small.named_parameters() if p.grad is not None},
        submodel.slice(gradients),
    )

    def mask_again(net, momentum):
        with torch.no_grad():
            net.load_state_dict(submodel.mask(net.state_dict()))
            for name, buffer in submodel.mask(momentum).items():
                momentum[name].copy_(buffer)

    train(small, x)
    train(masked, x, again=mask_again)
    assert_same(dict(small.state_dict()), submodel.slice(dict(masked.state_dict())))


@every_net
@pytest.mark.parametrize("scope", ["all", "inner"])
def test_a_masked_net_is_the_shrunk_net(cls, scope):
    check_masked_is_shrunk(cls, draw(graph_of(cls), 0, scope))


@every_net
def test_a_masked_net_is_the_shrunk_net_with_one_bundle_of_each_group(cls):
    check_masked_is_shrunk(cls, smallest(graph_of(cls)))


@every_net
@pytest.mark.slow
def test_a_masked_net_is_the_shrunk_net_at_every_reachable_budget(cls):
    graph = graph_of(cls)
    for rho in (0.2, 0.5):
        try:
            submodel = random_scores(graph, generator(5)).top(rho, multiple=4)
        except BudgetError:
            continue
        check_masked_is_shrunk(cls, submodel)


@pytest.mark.slow
@settings(deadline=None, max_examples=400)
@given(
    cls=st.sampled_from(ZOO), seed=st.integers(0, 10**6), scope=st.sampled_from(["all", "inner"])
)
def test_a_masked_net_is_the_shrunk_net_for_any_kept_channels(cls, seed, scope):
    check_masked_is_shrunk(cls, draw(graph_of(cls), seed, scope))


@settings(deadline=None, max_examples=60)
@given(cls=st.sampled_from(ZOO), seed=st.integers(0, 10**6))
def test_slice_undoes_scatter_and_sees_through_mask(cls, seed):
    submodel = draw(graph_of(cls), seed)
    state = dict(build(cls).state_dict())
    small = submodel.slice(state)
    other = {name: torch.full_like(tensor, 7) for name, tensor in state.items()}
    for full in (state, other, submodel.mask(other)):
        for name, tensor in submodel.slice(submodel.scatter(small, full)).items():
            assert torch.equal(tensor, small[name])
    for name, tensor in submodel.slice(submodel.mask(state)).items():
        assert torch.equal(tensor, small[name])
    assert {name: tuple(tensor.shape) for name, tensor in small.items()} == dict(submodel.shapes)


@settings(deadline=None, max_examples=40)
@given(cls=st.sampled_from(ZOO), seed=st.integers(0, 10**6))
def test_a_mask_is_zero_wherever_an_axis_lost_the_entry(cls, seed):
    submodel = draw(graph_of(cls), seed)
    ones = {name: torch.ones(shape) for name, shape in submodel.graph.shapes.items()}
    for name, mask in submodel.mask(ones).items():
        assert int(mask.sum()) == torch.Size(submodel.shapes[name]).numel()
        for axis, kept in submodel.indices[name]:
            lost = torch.ones(mask.shape[axis], dtype=torch.bool)
            lost[kept] = False
            assert not mask.movedim(axis, 0)[lost].any()


@every_net
def test_shrinking_draws_nothing_and_leaves_the_net_alone(cls):
    net = build(cls).train()
    before = copy.deepcopy(net.state_dict())
    random_state = torch.get_rng_state()
    small = draw(graph_of(cls), 1).shrink(net)
    assert torch.equal(random_state, torch.get_rng_state())
    assert all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())
    assert small.training
    assert type(small) is type(net)


@every_net
def test_a_shrunk_net_is_an_ordinary_module(cls):
    net = build(cls)
    submodel = draw(graph_of(cls), 2)
    small = submodel.shrink(net).eval()
    twin = submodel.shrink(build(cls)).eval()
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.zero_()
    twin.load_state_dict(small.state_dict())
    x = net.example()
    for other in (twin, copy.deepcopy(small)):
        for ours, theirs in zip(run(other, x), run(small, x), strict=True):
            assert torch.equal(ours, theirs)
    names = [name for name, _ in net.named_parameters()]
    assert [name for name, _ in small.named_parameters()] == names
    assert all(p.requires_grad and p.is_leaf for p in small.parameters())
    assert all(shared(small, pair) for pair in tied_pairs(net))


def tied_pairs(net):
    tensors = list(net.named_parameters(remove_duplicate=False))
    return [(a, b) for i, (a, p) in enumerate(tensors) for b, q in tensors[:i] if p is q]


def shared(net, pair):
    return net.get_parameter(pair[0]) is net.get_parameter(pair[1])


@every_net
def test_a_shrunk_nets_layers_say_their_sizes(cls):
    small = draw(graph_of(cls), 4).shrink(build(cls))
    for module in small.modules():
        if isinstance(module, nn.ConvTranspose2d):
            assert (module.in_channels, module.out_channels // module.groups) == tuple(
                module.weight.shape[:2]
            )
        elif isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d):
            out, cin = module.weight.shape[:2]
            assert (module.out_channels, module.in_channels) == (out, cin * module.groups)
        elif isinstance(module, nn.Linear):
            assert (module.out_features, module.in_features) == tuple(module.weight.shape)
        elif isinstance(module, nn.GroupNorm):
            assert module.num_channels == len(module.weight)
            assert module.num_channels % module.num_groups == 0
        elif isinstance(module, nn.BatchNorm2d):
            assert module.running_mean is not None
            assert module.num_features == len(module.weight) == len(module.running_mean)


def test_a_net_that_can_be_pickled_still_can_after_shrinking():
    small = draw(graph_of(MobileNetV2), 0).shrink(build(MobileNetV2)).eval()
    again = pickle.loads(pickle.dumps(small))
    x = small.example()
    assert torch.equal(again(x), small(x))


@every_net
def test_input_channels_and_logits_are_never_cut(cls):
    net = build(cls)
    small = draw(graph_of(cls), 6).shrink(net).eval()
    for ours, theirs in zip(run(small, net.example()), run(net.eval(), net.example()), strict=True):
        assert ours.shape == theirs.shape


def test_lists_bring_a_submodel_back():
    submodel = draw(graph_of(ResNet), 8)
    again = Submodel.from_lists(submodel.graph, submodel.to_lists())
    assert again.to_lists() == submodel.to_lists()
    assert dict(again.shapes) == dict(submodel.shapes)


@pytest.mark.parametrize(
    ("kept", "words"),
    [
        ([], "non-empty"),
        ([0, 8], "between 0 and 7"),
        ([-1, 2], "between 0 and 7"),
        ([2, 1], "sorted"),
        ([1, 1], "without repeats"),
    ],
)
def test_kept_channels_no_net_could_have_are_refused(kept, words):
    with pytest.raises(MessageError, match=words):
        Submodel.from_lists(graph_of(ResNet), {"conv1": kept})


def test_half_a_bundle_is_refused():
    graph = graph_of(GroupNormResNet)
    with pytest.raises(MessageError, match="whole bundles of 2"):
        Submodel.from_lists(graph, {"conv1": [0, 1, 2]})


def test_a_foreign_group_or_shape_is_refused():
    graph = graph_of(ResNet)
    with pytest.raises(MessageError, match='no channel group "conv9"'):
        Submodel.from_lists(graph, {"conv9": [0]})
    state = dict(build(ResNet).state_dict())
    small = draw(graph, 0).slice(state)
    with pytest.raises(MessageError, match=r'"conv1.weight" has shape'):
        draw(graph, 1).scatter(small, state)
    with pytest.raises(MessageError, match=r'"conv1.weight" has shape'):
        draw(graph, 1).slice(small)


@pytest.mark.parametrize("wrap", [lambda x: x, lambda x: [x], lambda x: {"last": (x,)}])
def test_a_net_that_remembers_its_last_activations_can_be_shrunk(wrap):
    class Remembers(ResNet):
        def forward(self, x):
            logits = super().forward(x)
            self.seen = wrap(logits)
            return logits

    net = Remembers()
    loss_of(net, net.example()).backward()
    (seen,) = tensors_in(net.seen)
    assert not seen.is_leaf
    small = draw(ChannelGraph.trace(net, net.example()), 0).shrink(net)
    assert run(small, net.example())[0].shape == (2, 5)
    assert seen.grad_fn is not None


def test_scatter_brings_small_tensors_to_the_type_of_the_large():
    submodel = draw(graph_of(ResNet), 5)
    state = dict(build(ResNet).state_dict())
    small = {name: tensor.float() for name, tensor in submodel.slice(state).items()}
    assert submodel.scatter(small, state)["conv1.weight"].dtype == torch.float64
