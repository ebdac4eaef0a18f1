import pytest
import torch
from tests.methods.rig import assigned, reply, server_of, work_for
from tests.tiny import tiny_net
from torch.nn.functional import cross_entropy

from dapperfl.core.net import Batch, Net
from dapperfl.core.prototypes import class_means, contrast, prototypes, regression
from dapperfl.methods.fpl import FPL

BATCH = Batch(torch.randn(5, 3, 6, 6), torch.tensor([0, 1, 2, 0, 1]))


def test_the_defaults_are_the_papers():
    method = FPL()
    assert (method.tau, method.cluster_weight, method.unbiased_weight) == (0.02, 1, 1)
    assert method.unbiased_reduce == "mean"
    assert FPL.from_preset("paper").unbiased_reduce == "sum"


def test_the_objective_is_cross_entropy_plus_both_terms():
    server = server_of(FPL())
    state = prototypes([{"means": torch.rand(3, 8), "present": torch.ones(3) > 0}])
    net = Net(tiny_net(7).eval(), "fc")
    work = work_for(server, shared=state)
    z, logits = net.split(BATCH.x)
    expected = (
        cross_entropy(logits, BATCH.y)
        + 0.5 * contrast(z, BATCH.y, state, 0.02)
        + 2 * regression(z, BATCH.y, state)
    )
    ours = FPL(cluster_weight=0.5, unbiased_weight=2.0).loss(net, BATCH, work)
    assert ours.item() == pytest.approx(expected.item(), rel=1e-6)
    first = FPL().loss(net, BATCH, work_for(server))  # no prototypes yet
    assert first.item() == cross_entropy(logits, BATCH.y).item()


def test_a_report_holds_the_class_means_of_a_clean_pass():
    report = FPL().report(Net(tiny_net(7), "fc"), iter([BATCH]), work_for(server_of(FPL())))
    expected = class_means(Net(tiny_net(7), "fc"), [BATCH])
    assert torch.equal(report.shared["means"], expected["means"])
    assert report.shared["present"].all()


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
