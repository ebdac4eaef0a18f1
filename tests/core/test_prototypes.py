"""The two terms of prototypes by hand, and FINCH against a second, plain implementation."""

from math import cos, exp, hypot, log, radians, sin

import pytest
import torch
from tests.tiny import tiny_graph, tiny_net
from torch import Tensor

from dapperfl.core.messages import ClientCost, ClientUpdate, Device, LocalModel
from dapperfl.core.net import Batch, Net
from dapperfl.core.prototypes import (
    Gathered,
    class_means,
    contrast,
    finch,
    narrowed,
    prototypes,
    regression,
    widened,
)
from dapperfl.core.rng import generator
from dapperfl.core.scores import l1_scores
from dapperfl.core.state import State


def shared(clusters: list[list[float]], labels: list[int], unbiased: list[list[float]]) -> State:
    known = [float(label in labels) for label in range(len(unbiased))]
    return {
        "clusters": torch.tensor(clusters),
        "cluster_labels": torch.tensor(labels),
        "unbiased": torch.tensor(unbiased),
        "known": torch.tensor(known),
    }


def test_the_terms_by_hand_with_one_prototype_each():
    # z = (1, 1), its class at (1, 0), the other at (0, 1): equal cosines, so ln 2;
    # (1 - 1)² + (1 - 0)² = 1, and half of it as a mean over two features
    z, y = torch.tensor([[1.0, 1.0]]), torch.tensor([0])
    both = shared([[1.0, 0.0], [0.0, 1.0]], [0, 1], [[1.0, 0.0], [0.0, 1.0]])
    assert contrast(z, y, both, 0.02).item() == pytest.approx(log(2), abs=1e-5)
    assert regression(z, y, both).item() == 0.5
    assert regression(z, y, both, "sum").item() == 1


def test_the_terms_by_hand_with_two_clusters_of_the_own_class():
    # tau = .5, z = (1, 0): cosines .8 and .6 of the own class, 0 of the other
    z, y = torch.tensor([[1.0, 0.0]]), torch.tensor([0])
    three = shared([[0.8, 0.6], [0.6, 0.8], [0.0, 1.0]], [0, 0, 1], [[0.7, 0.7], [0.0, 1.0]])
    own = exp(0.8 / 0.5) + exp(0.6 / 0.5)
    expected = -log(own / (own + exp(0)))
    assert expected == pytest.approx(0.114108, abs=1e-6)
    assert contrast(z, y, three, 0.5).item() == pytest.approx(expected, abs=1e-6)
    assert regression(z, y, three).item() == pytest.approx((0.3**2 + 0.7**2) / 2)  # .29


def test_a_sample_without_a_prototype_adds_nothing_but_counts_in_the_batch():
    z, y = torch.tensor([[1.0, 1.0], [1.0, 1.0]], requires_grad=True), torch.tensor([0, 2])
    both = shared([[1.0, 0.0], [0.0, 1.0]], [0, 1], [[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]])
    terms = contrast(z, y, both, 0.02) + regression(z, y, both)
    assert terms.item() == pytest.approx((log(2) + 0.5) / 2, abs=1e-5)
    terms.backward()
    assert z.grad is not None
    assert z.grad[0].abs().sum() > 0
    assert z.grad[1].tolist() == [0, 0]


def test_a_small_temperature_overflows_neither_value_nor_gradient():
    # exp(1 / .01) is more than float32 holds
    z = torch.tensor([[1.0, 0.0], [0.0, 1.0]], requires_grad=True)
    both = shared([[1.0, 0.0], [0.0, 1.0]], [0, 1], [[1.0, 0.0], [0.0, 1.0]])
    value = contrast(z, torch.tensor([0, 0]), both, 0.01)
    value.backward()
    assert z.grad is not None
    assert z.grad.isfinite().all()
    assert value.item() == pytest.approx((0 + 100) / 2, rel=1e-4)


def test_class_means_are_those_of_a_clean_pass():
    x, y = torch.randn(5, 3, 6, 6), torch.tensor([0, 2, 0, 2, 2])
    found = class_means(Net(tiny_net(7), "fc"), [Batch(x[:2], y[:2]), Batch(x[2:], y[2:])])
    z = Net(tiny_net(7).eval(), "fc").split(x)[0]
    assert torch.allclose(found["means"][0], (z[0] + z[2]) / 2, atol=1e-6)
    assert torch.allclose(found["means"][2], (z[1] + z[3] + z[4]) / 3, atol=1e-6)
    assert found["present"].tolist() == [True, False, True]


def at(*angles: float) -> Tensor:
    return torch.tensor([[cos(radians(a)), sin(radians(a))] for a in angles])


@pytest.mark.parametrize(
    ("angles", "clusters"),
    [
        ((0, 5, 60, 65), [0, 0, 1, 1]),
        ((0, 5, 80), [0, 0, 0]),
        ((0, 5, 30, 33, 90, 94), [0, 0, 1, 1, 2, 2]),
        ((0, 90), [0, 0]),
        ((7,), [0]),
    ],
)
def test_finch_on_the_circle(angles, clusters):
    assert finch(at(*angles)).tolist() == clusters


Rows = list[list[float]]


def plain_finch(rows: Rows) -> list[int]:
    """Section 5(e), rule by rule, with lists: link, find components, repeat on the means."""
    partition = linked(rows)
    while (count := max(partition) + 1) > 1:
        means = [centre([r for r, g in zip(rows, partition, strict=True) if g == c])
                 for c in range(count)]  # fmt: skip
        found = linked(means)
        if max(found) + 1 in (1, count):  # a single cluster, or no fewer: discarded
            break
        partition = [found[g] for g in partition]
    return partition


def linked(points: Rows) -> list[int]:
    """Number the components under: j = k(i), or i = k(j), or k(i) = k(j)."""
    everyone = range(len(points))
    k = [min((distance(points[i], points[j]), j) for j in everyone if j != i)[1] for i in everyone]
    group = list(everyone)
    for _ in everyone:  # long enough for the smallest number to reach all of a component
        for i in everyone:
            friends = [j for j in everyone if k[i] == j or k[j] == i or k[i] == k[j]]
            group[i] = min(group[j] for j in [i, *friends])
    return [sorted(set(group)).index(g) for g in group]


def distance(a: list[float], b: list[float]) -> float:
    dot = sum(x * y for x, y in zip(a, b, strict=True))
    return 1 - dot / (hypot(*a) * hypot(*b))


def centre(rows: Rows) -> list[float]:
    return [sum(column) / len(rows) for column in zip(*rows, strict=True)]


def test_finch_agrees_with_a_second_implementation():
    rng = generator(0, "finch")
    sizes = []
    for _ in range(300):
        count = int(torch.randint(2, 13, (), generator=rng))
        rows = torch.rand(count, int(torch.randint(2, 9, (), generator=rng)), generator=rng)
        found = finch(rows).tolist()
        assert found == plain_finch(rows.double().tolist())
        sizes.append(max(found) + 1)
    assert {1, 2, 3} <= set(sizes)  # the inputs are not all trivial


def test_two_or_three_rows_are_one_cluster():
    rng = generator(0, "few")
    for count in (2, 3) * 20:
        assert finch(torch.rand(count, 16, generator=rng)).unique().tolist() == [0]


def test_unbiased_prototypes_are_means_over_clusters_not_clients():
    # class 0 at angles 0, 4, 8 | 90, 94: clusters {0, 4, 8} and {90, 94}; class 1 on one client;
    # class 2 on nobody
    rows = at(0, 4, 8, 90, 94)
    means: list[State] = [
        {
            "means": torch.stack([row, row * (i == 0) * 2, torch.zeros(2)]),
            "present": torch.tensor([True, i == 0, False]),
        }
        for i, row in enumerate(rows)
    ]
    found = prototypes(means)
    low, high = rows[:3].mean(0), rows[3:].mean(0)
    assert found["cluster_labels"].tolist() == [0, 0, 1]
    assert torch.allclose(found["clusters"], torch.stack([low, high, 2 * rows[0]]))
    assert torch.allclose(found["unbiased"][0], (low + high) / 2)
    assert not torch.allclose(found["unbiased"][0], rows.mean(0), atol=1e-3)
    assert found["known"].tolist() == [1, 1, 0]


def test_one_cluster_makes_the_unbiased_prototype_the_mean_of_the_clients():
    rows = at(0, 5, 80)
    found = prototypes([{"means": r[None], "present": torch.tensor([True])} for r in rows])
    assert torch.allclose(found["unbiased"][0], rows.mean(0))


GRAPH = tiny_graph(tiny_net())
CUT = l1_scores(GRAPH, tiny_net().state_dict()).top(0.6, scope="all", multiple=1)


def kept_features() -> list[int]:
    """Return the columns of the head that the cut net has, found by marking them."""
    marked = {"fc.weight": torch.arange(8.0).expand(3, 8)}
    return [int(column) for column in CUT.slice(marked)["fc.weight"][0]]


def test_class_means_of_a_small_net_are_zero_where_it_has_no_feature():
    columns = kept_features()
    assert 0 < len(columns) < 8
    means: State = {"means": torch.rand(3, len(columns)), "present": torch.ones(3) > 0}
    wide = widened(means, CUT)
    assert wide["means"].shape == (3, 8)
    assert torch.equal(wide["means"][:, columns], means["means"])
    others = [column for column in range(8) if column not in columns]
    assert wide["means"][:, others].abs().sum() == 0
    assert wide["present"] is means["present"]


def test_a_small_net_gets_the_features_it_has():
    shared = prototypes([{"means": torch.rand(3, 8), "present": torch.ones(3) > 0}])
    small = narrowed(shared, CUT)
    for name in ("clusters", "unbiased"):
        assert torch.equal(small[name], shared[name][:, kept_features()])
    assert small["cluster_labels"] is shared["cluster_labels"]
    assert small["known"] is shared["known"]


def test_for_the_whole_net_nothing_changes():
    means: State = {"means": torch.rand(3, 8), "present": torch.ones(3) > 0}
    assert widened(means, GRAPH.full()) is means
    shared = prototypes([means])
    assert narrowed(shared, GRAPH.full()) is shared
    assert narrowed({}, CUT) == {}


def test_a_representation_is_the_same_seen_from_the_small_net_and_from_the_full_one():
    # A masked net and the small one have the same features, but for zeros.
    net = tiny_net().eval()
    x, y = torch.randn(6, 3, 6, 6), torch.tensor([0, 1, 2, 0, 1, 2])
    small = class_means(Net(CUT.shrink(net).eval(), "fc"), [Batch(x, y)])
    wide = widened(small, CUT)["means"]
    shared = prototypes([{"means": wide, "present": small["present"]}])
    z = Net(CUT.shrink(net).eval(), "fc").split(x)[0]
    full = torch.zeros(6, 8).index_copy_(1, torch.tensor(kept_features()), z)
    near, far = narrowed(shared, CUT), shared
    assert torch.allclose(contrast(z, y, near, 0.1), contrast(full, y, far, 0.1), atol=1e-5)
    ours, theirs = regression(z, y, near, "sum"), regression(full, y, far, "sum")
    assert torch.allclose(ours, theirs, atol=1e-6)


def test_updates_are_passed_on_and_their_means_kept():
    small: State = {"means": torch.rand(3, len(kept_features())), "present": torch.ones(3) > 0}
    model = LocalModel(CUT.slice(tiny_net().state_dict()), CUT)
    update = ClientUpdate(Device(0, "light", 0.6, 8), model, 8, ClientCost(), small)
    seen = Gathered(iter([update]))
    assert list(seen) == [update]
    (kept,) = seen.means
    assert torch.equal(kept["means"], widened(small, CUT)["means"])
