"""A method of one's own over the wire, that sends another number of numbers at each level."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from tests.flower.village import MODULES, Village, nodes_of, serve_in, toy

from dapperfl.core.messages import Report, Work
from dapperfl.core.net import Batch, Net
from dapperfl.lab.records import load_records
from dapperfl.methods.fedmp import FedMP


@dataclass(frozen=True, kw_only=True)
class Loud(FedMP):
    """Sends the norm of each filter of the small net that it was given."""

    def report(self, net: Net, batches: Iterable[Batch], work: Work) -> Report:
        sizes = [len(t) for t in work.model.weights.values() if t.dim() == 4]
        return Report(shared={"norms": torch.zeros(sum(sizes))})


def test_honest_devices_of_every_level_are_believed(tmp_path):
    config = toy(f"method={__name__}:Loud", "method.multiple=1", "rounds=1")
    village = Village(nodes_of(config, tmp_path, modules=f"{MODULES},{__name__}"))
    serve_in(village, config, tmp_path / "run")
    (line,) = load_records(tmp_path / "run")
    assert line.left_out == ()
    assert set(line.costs) == {0, 1, 2}
    assert line.kept.keys() == {0.4, 0.5}  # their nets are smaller
