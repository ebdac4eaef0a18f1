"""Which channels are found to be the same, and that tracing leaves no trace."""

import copy

import pytest
import torch
from tests.core import zoo, zoo_functional, zoo_odd, zoo_pinned
from tests.core.made import Made
from torch import nn
from torch.nn import functional as F

from dapperfl.core.channels import ChannelGraph
from dapperfl.nets.resnet import resnet10


def trace(net):
    return ChannelGraph.trace(net, net.example(1))


def sizes(graph):
    return {group.name: group.size for group in graph.groups}


def streams(graph):
    return {group.name for group in graph.groups if group.stream}


def bundles(graph):
    return {group.name: group.bundle for group in graph.groups}


def test_a_resnets_streams_are_told_from_inner_channels():
    graph = trace(zoo.ResNet())
    assert sizes(graph) == {
        "conv1": 8, "layer1.0.conv1": 8, "layer1.1.conv1": 8,
        "layer2.0.conv1": 16, "layer2.0.conv2": 16, "layer2.1.conv1": 16,
    }  # fmt: skip
    assert streams(graph) == {"conv1", "layer2.0.conv2"}
    assert [group.name for group in graph.in_scope("inner")] == [
        "layer1.0.conv1", "layer1.1.conv1", "layer2.0.conv1", "layer2.1.conv1"
    ]  # fmt: skip
    assert graph.in_scope("all") == graph.groups
    assert graph.fixed == {"fc": "the net's output"}


@pytest.mark.parametrize(("width", "scope"), [(16, "inner"), (31, "inner"), (32, "all")])
def test_wide_residual_streams_are_cut_by_themselves_and_narrow_ones_are_not(width, scope):
    graph = ChannelGraph.trace(resnet10(10, width=width), torch.zeros(1, 3, 16, 16))
    assert graph.in_scope("inner") != graph.in_scope("all")
    assert graph.in_scope("auto") == graph.in_scope(scope)


def test_streams_that_no_norm_can_silence_are_left_alone():
    class Unscaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem, self.block = nn.Conv2d(3, 64, 3), nn.Conv2d(64, 64, 3, padding=1)
            self.fc = nn.Linear(64, 10)

        def forward(self, x):
            x = self.stem(x).relu()
            return self.fc((x + self.block(x)).relu().mean((2, 3)))

    graph = ChannelGraph.trace(Unscaled(), torch.zeros(1, 3, 8, 8))
    assert streams(graph)
    assert graph.in_scope("auto") == graph.in_scope("inner") != graph.in_scope("all")


def test_without_residual_streams_all_scopes_are_the_same():
    graph = trace(zoo_odd.DenseNet())
    assert graph.in_scope("auto") == graph.in_scope("inner") == graph.in_scope("all")


def test_an_unknown_scope_is_refused():
    with pytest.raises(ValueError, match='unknown scope "outer"; choose "auto", "inner" or "all"'):
        trace(zoo.ResNet()).in_scope("outer")


def test_an_inverted_residual_is_inner_and_its_ends_are_streams():
    graph = trace(zoo.MobileNetV3())
    assert streams(graph) == {"features.0.0", "features.2.conv.3"}
    assert graph.group("features.1.conv.0.0").size == 16  # expansion, depthwise, gate
    assert graph.group("features.1.conv.2.reduce").size == 4


@pytest.mark.parametrize(("fold", "stream"), [(torch.sum, True), (torch.amax, False)])
def test_a_sum_of_stacked_branches_is_a_stream_and_the_largest_of_them_is_not(fold, stream):
    net = Made(
        lambda net, x: net.fc(fold(torch.stack([net.a(x), net.b(x)]), 0).mean((2, 3))),
        a=nn.Conv2d(3, 6, 3), b=nn.Conv2d(3, 6, 3), fc=nn.Linear(6, 5),
    )  # fmt: skip
    (group,) = ChannelGraph.trace(net, torch.zeros(1, 3, 8, 8)).groups
    assert (group.size, group.stream) == (6, stream)


def test_gating_products_and_concatenation_make_no_stream():
    for net in (
        zoo_odd.DenseNet(),
        zoo_odd.Inception(),
        zoo_odd.UNet(),
        zoo_functional.Attentive(),
    ):
        assert not streams(trace(net))
    assert streams(trace(zoo.SeResNet())) == {"stem.0"}


def test_every_layer_of_a_densenet_is_a_group_of_its_own():
    graph = trace(zoo_odd.DenseNet())
    layers = [(f"block1.{i}", 4) for i in range(3)] + [(f"block2.{i}", 4) for i in range(2)]
    expected = {"conv0": 8, "transition.2": 10}
    for name, growth in layers:
        expected |= {f"{name}.conv1": 8, f"{name}.conv2": growth}
    assert sizes(graph) == expected


def test_channels_that_are_filtered_each_by_itself_pass_on():
    graph = trace(zoo_odd.Resampled())
    assert sizes(graph) == {"stem.0": 6, "mix.0": 8, "last.0": 8}
    assert graph.fixed == {"fc": "the net's output"}


def test_group_norm_loses_whole_norm_groups():
    assert set(bundles(trace(zoo.GroupNormResNet())).values()) == {2, 4}
    graph = trace(zoo.GroupNormResNet())
    assert graph.bundles[graph.group("conv1")].tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert set(bundles(trace(zoo.ChannelNormResNet())).values()) == {1}
    alone = trace(zoo.OneGroupResNet())
    assert not alone.groups
    assert alone.fixed["conv1"] == "all of its channels stay or go together"


def test_a_grouped_convolution_loses_equally_many_of_each_group():
    graph = trace(zoo.ResNeXt())
    for name in ("body.0.conv1", "body.0.conv2"):
        assert graph.bundles[graph.group(name)].tolist() == [[0, 2, 4, 6], [1, 3, 5, 7]]
    assert graph.group("body.0.conv3").bundle == 1


def test_channels_under_a_layer_norm_stay_full_and_are_listed():
    graph = trace(zoo_odd.ConvNeXt())
    assert sizes(graph) == {"pwconv1": 16}
    assert 'normalised over its channels by "layer_norm" in norm' in graph.fixed["stem"]
    assert set(trace(zoo_odd.LayerNormMlp()).fixed) == {"net.0", "net.6"}


def test_a_shortcut_padded_with_zeros_keeps_the_channels_it_adds():
    for net in (zoo.PaddedShortcut(), zoo.ZerosShortcut()):
        graph = trace(net)
        assert sizes(graph) == {"stem.0": 8, "conv1.0": 16}
        axis = graph.axes["conv2.0.weight"][0]
        assert axis is not None
        assert int((axis < 0).sum()) == 8


def test_a_number_in_code_keeps_only_what_meets_it():
    graph = trace(zoo_functional.Tutorial())
    assert sizes(graph) == {"conv1": 6, "fc1": 12, "fc2": 10}
    assert "a size is fixed in code" in graph.fixed["conv2"]
    graph = trace(zoo_functional.FixedNumbers())
    assert sizes(graph) == {"conv": 6, "left": 6}
    assert "cut at a fixed position" in graph.fixed["split.0"]


def test_functional_layers_are_found_by_their_parameters_names():
    graph = trace(zoo_functional.Functional())
    assert sizes(graph) == {"w1": 8, "w2": 12, "w3": 10}
    assert bundles(graph)["w2"] == 3
    assert graph.gates == {"g1", "g2", "g3.0", "g3.1"}
    assert graph.head is None


def test_learnt_vectors_are_cut_with_the_channels_they_meet():
    graph = trace(zoo_functional.Scaled())
    assert sizes(graph) == {"conv1": 8, "conv2": 8}
    for name in ("weight", "bias", "mean", "var", "gamma", "beta"):
        assert graph.axes[name][0] is not None


def test_a_layer_used_twice_ties_what_it_reads_to_what_it_writes():
    graph = trace(zoo_odd.SharedConv())
    assert sizes(graph) == {"stem": 8, "bn.0": 8, "a": 6}
    assert graph.axes["unused.weight"] == (None, None)


def test_parts_that_run_only_in_training_are_found_as_well():
    graph = trace(zoo_odd.Regularised())
    assert sizes(graph) == {"stem.0": 8, "side.0": 6}
    assert {work.weight for work in graph.arithmetic}.isdisjoint({"side.0.weight", "aux.weight"})


def drawn(net, x):
    z = net.body(x).mean((2, 3))
    mean, spread = net.mean(z), net.spread(z)
    return net.fc(mean + spread * net.noise(mean) if net.training else mean)


@pytest.mark.parametrize("noise", [torch.randn_like, lambda like: torch.randn(like.shape).to(like)])
def test_channels_that_meet_in_training_only_are_one_group(noise):
    parts = {"mean": nn.Linear(8, 12), "spread": nn.Linear(8, 12), "fc": nn.Linear(12, 5)}
    net = Made(drawn, body=nn.Conv2d(3, 8, 3), **parts)
    net.noise = noise
    graph = ChannelGraph.trace(net, torch.zeros(1, 3, 8, 8))
    assert sizes(graph) == {"body": 8, "mean": 12}
    assert streams(graph) == {"mean"}
    small = graph.full().from_lists(graph, {"mean": [1, 3, 8]}).shrink(net)
    assert small.train()(torch.ones(2, 3, 8, 8)).shape == (2, 5)


def test_a_shared_weight_writes_once_and_a_fixed_filter_not_at_all():
    written = [name for name, _ in trace(zoo_odd.SharedConv()).writers]
    assert written == ["stem.weight", "conv.weight", "bn.0.weight", "a.weight", "fc.weight"]

    class Blurred(zoo.ResNet):
        blur: torch.Tensor

        def __init__(self):
            super().__init__()
            self.register_buffer("blur", torch.ones(3, 1, 3, 3) / 9, persistent=False)

        def forward(self, x):
            return super().forward(nn.functional.conv2d(x, self.blur, padding=1, groups=3))

    graph, plain = trace(Blurred()), trace(zoo.ResNet())
    assert graph.writers == plain.writers
    assert graph.arithmetic[1:] == plain.arithmetic
    blur = graph.arithmetic[0]
    assert (blur.weight, blur.positions, blur.learnt) == (None, 3 * 9 * 64, False)


class Tied(zoo.Net):
    """Two branches side by side, added to a third: no branch may lose everything."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Conv2d(3, 2, 1), nn.Conv2d(3, 6, 1), nn.Conv2d(3, 8, 1)
        self.fc = nn.Linear(8, 5)

    def forward(self, x):
        return self.fc((torch.cat([self.a(x), self.b(x)], 1) + self.c(x)).mean((2, 3)))


def test_a_layer_that_is_a_part_of_a_group_keeps_a_channel():
    graph = trace(Tied())
    assert sizes(graph) == {"a": 6}
    for kept in range(6):
        shapes = graph.full().from_lists(graph, {"a": [kept]}).shapes
        assert min(shapes["a.weight"][0], shapes["b.weight"][0]) >= 1


@pytest.mark.parametrize(
    ("cls", "head"),
    [
        (zoo.ResNet, "fc"),
        (zoo.Vgg, "classifier.6"),
        (zoo_odd.LayerNormMlp, "net.6"),
        (zoo_functional.Tutorial, "fc3"),
        (zoo_functional.Reshaped, "fc"),
        (zoo_odd.Regularised, "fc"),
        (zoo_functional.Scaled, "fc"),
    ],
)
def test_the_head_is_the_linear_layer_that_makes_the_logits(cls, head):
    assert trace(cls()).head == head


def test_a_linear_layer_that_makes_the_logits_several_times_is_the_head():
    def forward(net, x):
        return torch.stack([net.fc(F.dropout(x.mean((2, 3)), 0.5)) for _ in range(4)]).mean(0)

    net = Made(forward, fc=nn.Linear(3, 5))  # dropout of several samples
    assert ChannelGraph.trace(net, torch.zeros(1, 3, 8, 8)).head == "fc"


def test_logits_of_a_convolution_or_of_two_layers_have_no_head():
    features = [nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 5, 1), nn.AdaptiveAvgPool2d(1)]
    graph = ChannelGraph.trace(nn.Sequential(*features, nn.Flatten()), torch.zeros(1, 3, 8, 8))
    assert graph.head is None
    assert sizes(graph) == {"0": 8}

    class TwoHeads(zoo.Net):
        def __init__(self):
            super().__init__()
            self.one, self.two = nn.Linear(192, 5), nn.Linear(192, 5)

        def forward(self, x):
            return self.one(x.flatten(1)) + self.two(x.flatten(1))

    assert trace(TwoHeads()).head is None


def test_names_of_groups_are_unique():
    class TableAsHead(zoo.Net):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(5, 8)
            self.mid = nn.Linear(8, 8)

        def forward(self, x):
            return nn.functional.linear(self.mid(self.table(x)).mean(1), self.table.weight)

    graph = ChannelGraph.trace(TableAsHead(), torch.zeros(1, 4, dtype=torch.long))
    assert sizes(graph) == {"table": 8}
    assert "table[0]" in graph.fixed


@pytest.mark.parametrize("training", [True, False])
def test_tracing_changes_neither_net_nor_mode_nor_random_numbers(training):
    for net in (zoo.ResNet(), zoo_functional.Tutorial(), zoo_odd.Regularised()):
        net.train(training)
        before = copy.deepcopy(net.state_dict())
        random_state = torch.get_rng_state()
        example = net.example(1)
        kept = example.clone()
        trace(net)
        ChannelGraph.trace(net, example)
        assert torch.equal(torch.get_rng_state(), random_state)
        assert torch.equal(example, kept)
        assert all(module.training is training for module in net.modules())
        assert all(torch.equal(t, before[name]) for name, t in net.state_dict().items())
        assert not any(m._forward_hooks or m._forward_pre_hooks for m in net.modules())


def test_one_example_or_many_give_the_same_graph():
    net = zoo.MobileNetV2()
    one, many = ChannelGraph.trace(net, net.example(1)), ChannelGraph.trace(net, net.example(5))
    assert one.groups == many.groups
    assert one.arithmetic == many.arithmetic


def test_an_input_of_integers_is_traced():
    class Bytes(zoo.ResNet):
        def forward(self, x):
            return super().forward(x.float() / 255)

    example = torch.zeros(1, 3, 8, 8, dtype=torch.uint8)
    assert ChannelGraph.trace(Bytes(), example).groups == trace(zoo.ResNet()).groups


def test_unknown_scopes_and_groups_are_refused():
    graph = trace(zoo.ResNet())
    with pytest.raises(ValueError, match='unknown scope "outer"'):
        graph.in_scope("outer")
    with pytest.raises(KeyError, match='no channel group "conv7"'):
        graph.group("conv7")


def test_groups_without_a_batch_or_group_norm_are_known():
    assert not trace(zoo.MobileNetV2()).ungated
    graph = trace(zoo.Vgg())
    assert {group.name for group in graph.ungated} == {"classifier.0", "classifier.3"}
    layers = {name.rpartition(".")[0] for name in graph.unscaled}
    assert layers == {"classifier.0", "classifier.3", "classifier.6"}


@pytest.mark.parametrize("cls", zoo_pinned.PINNED_NETS)
def test_layers_beside_calls_without_a_rule_are_cut(cls):
    assert set(cls.cut) <= sizes(trace(cls())).keys()


@pytest.mark.parametrize("cls", [zoo_pinned.WeightNorm, zoo_pinned.CosineHead])
def test_a_linear_layer_whose_weight_is_computed_is_a_head_too(cls):
    assert trace(cls()).head == "fc"


def test_state_that_a_call_without_a_rule_reads_is_cut_on_no_axis():
    graph = trace(zoo_pinned.Prototypes())
    assert graph.axes["points"] == (None, None)
    graph = trace(zoo_pinned.WeightNorm())
    assert all(axis is None for n in graph.axes if "original" in n for axis in graph.axes[n])


def test_a_net_in_which_nothing_can_be_cut_is_traced_and_says_why():
    net = nn.Sequential(nn.Flatten(2), nn.GRU(64, 8, batch_first=True))
    graph = ChannelGraph.trace(net, torch.zeros(1, 3, 8, 8))
    assert not graph.groups
    assert graph.why_fixed() == 'no channel rule for "gru" in 1 (GRU)'


def test_a_shrunk_transformer_is_the_masked_one_in_torchs_fused_kernel():
    """Outside of trials torch runs the whole layer as one kernel, in evaluation."""
    net = zoo_pinned.ConvTransformer().eval()
    graph = trace(net)
    kept = graph.full().from_lists(graph, {"encoder.layers.0.linear1": [1, 3, 8]})
    masked = copy.deepcopy(net)
    masked.load_state_dict(kept.mask(net.state_dict()))
    with torch.no_grad():
        ours, theirs = kept.shrink(net).eval()(net.example()), masked(net.example())
    assert torch.allclose(ours, theirs, atol=1e-5)
