"""FPL's two terms by hand, and FINCH against a second, plain implementation."""

from math import cos, exp, hypot, log, radians, sin

import pytest
import torch
from tests.methods.rig import assigned, reply, server_of, work_for
from tests.tiny import tiny_net
from torch import Tensor
from torch.nn.functional import cross_entropy

from dapperfl.core.net import Batch, Net
from dapperfl.core.rng import generator
from dapperfl.core.state import State
from dapperfl.methods.fpl import FPL, finch, prototypes

BATCH = Batch(torch.randn(5, 3, 6, 6), torch.tensor([0, 1, 2, 0, 1]))


def shared(clusters: list[list[float]], labels: list[int], unbiased: list[list[float]]) -> State:
    known = [float(label in labels) for label in range(len(unbiased))]
    return {
        "clusters": torch.tensor(clusters),
        "cluster_labels": torch.tensor(labels),
        "unbiased": torch.tensor(unbiased),
        "known": torch.tensor(known),
    }


def test_the_defaults_are_the_papers():
    method = FPL()
    assert (method.tau, method.cluster_weight, method.unbiased_weight) == (0.02, 1, 1)
    assert method.unbiased_reduce == "mean"
    assert FPL.from_preset("paper").unbiased_reduce == "sum"


def test_the_terms_by_hand_with_one_prototype_each():
    # z = (1, 1), its class at (1, 0), the other at (0, 1): equal cosines, so ln 2;
    # (1 - 1)² + (1 - 0)² = 1, and half of it as a mean over two features
    z, y = torch.tensor([[1.0, 1.0]]), torch.tensor([0])
    both = shared([[1.0, 0.0], [0.0, 1.0]], [0, 1], [[1.0, 0.0], [0.0, 1.0]])
    assert FPL(tau=0.02).contrast(z, y, both).item() == pytest.approx(log(2), abs=1e-5)
    assert FPL().regression(z, y, both).item() == 0.5
    assert FPL.from_preset("paper").regression(z, y, both).item() == 1


def test_the_terms_by_hand_with_two_clusters_of_the_own_class():
    # tau = .5, z = (1, 0): cosines .8 and .6 of the own class, 0 of the other
    z, y = torch.tensor([[1.0, 0.0]]), torch.tensor([0])
    three = shared([[0.8, 0.6], [0.6, 0.8], [0.0, 1.0]], [0, 0, 1], [[0.7, 0.7], [0.0, 1.0]])
    own = exp(0.8 / 0.5) + exp(0.6 / 0.5)
    expected = -log(own / (own + exp(0)))
    assert expected == pytest.approx(0.114108, abs=1e-6)
    assert FPL(tau=0.5).contrast(z, y, three).item() == pytest.approx(expected, abs=1e-6)
    assert FPL().regression(z, y, three).item() == pytest.approx((0.3**2 + 0.7**2) / 2)  # .29


def test_a_sample_without_a_prototype_adds_nothing_but_counts_in_the_batch():
    z, y = torch.tensor([[1.0, 1.0], [1.0, 1.0]], requires_grad=True), torch.tensor([0, 2])
    both = shared([[1.0, 0.0], [0.0, 1.0]], [0, 1], [[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]])
    terms = FPL().contrast(z, y, both) + FPL().regression(z, y, both)
    assert terms.item() == pytest.approx((log(2) + 0.5) / 2, abs=1e-5)
    terms.backward()
    assert z.grad is not None
    assert z.grad[0].abs().sum() > 0
    assert z.grad[1].tolist() == [0, 0]


def test_a_small_temperature_overflows_neither_value_nor_gradient():
    # exp(1 / .01) is more than float32 holds
    z = torch.tensor([[1.0, 0.0], [0.0, 1.0]], requires_grad=True)
    both = shared([[1.0, 0.0], [0.0, 1.0]], [0, 1], [[1.0, 0.0], [0.0, 1.0]])
    value = FPL(tau=0.01).contrast(z, torch.tensor([0, 0]), both)
    value.backward()
    assert z.grad is not None
    assert z.grad.isfinite().all()
    assert value.item() == pytest.approx((0 + 100) / 2, rel=1e-4)


def test_the_objective_is_cross_entropy_plus_both_terms():
    server = server_of(FPL())
    state = prototypes([{"means": torch.rand(3, 8), "present": torch.ones(3) > 0}])
    net = Net(tiny_net(7).eval(), "fc")
    work = work_for(server, shared=state)
    z, logits = net.split(BATCH.x)
    expected = (
        cross_entropy(logits, BATCH.y)
        + 0.5 * FPL().contrast(z, BATCH.y, state)
        + 2 * FPL().regression(z, BATCH.y, state)
    )
    ours = FPL(cluster_weight=0.5, unbiased_weight=2.0).loss(net, BATCH, work)
    assert ours.item() == pytest.approx(expected.item(), rel=1e-6)
    first = FPL().loss(net, BATCH, work_for(server))  # no prototypes yet
    assert first.item() == cross_entropy(logits, BATCH.y).item()


def test_a_report_holds_the_class_means_of_a_clean_pass():
    net = Net(tiny_net(7), "fc")
    y = torch.tensor([0, 2, 0, 2, 2])
    report = FPL().report(net, iter([Batch(BATCH.x[:2], y[:2]), Batch(BATCH.x[2:], y[2:])]),
                          work_for(server_of(FPL())))  # fmt: skip
    z = Net(tiny_net(7).eval(), "fc").split(BATCH.x)[0]
    assert torch.allclose(report.shared["means"][0], (z[0] + z[2]) / 2, atol=1e-6)
    assert torch.allclose(report.shared["means"][2], (z[1] + z[3] + z[4]) / 3, atol=1e-6)
    assert report.shared["present"].tolist() == [True, False, True]


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


def test_the_server_sends_what_it_clustered():
    method = FPL()
    server = server_of(method, (0.0, 0.0))
    first = assigned(method, server, 0)
    assert first.shared == {}
    sent = {"means": torch.rand(3, 8), "present": torch.ones(3) > 0}
    after = method.update(server, iter([reply(first, lambda t: t + 1, shared=sent)]))
    assert torch.allclose(after.weights["fc.bias"], server.weights["fc.bias"] + 1)
    back = assigned(method, after, 1).shared
    assert torch.equal(back["unbiased"], sent["means"])
    assert back["cluster_labels"].tolist() == [0, 1, 2]


def test_replies_in_which_no_class_is_present_leave_no_prototypes():
    nothing = {"means": torch.zeros(3, 4), "present": torch.zeros(3, dtype=torch.bool)}
    assert prototypes([nothing, nothing]) == {}  # a device over the wire may say so
