"""The quickest way per client is chosen, whatever the clock says here."""

import pytest
from tests.tiny import tiny_net

from dapperfl.methods.fedavg import FedAvg
from dapperfl.runtime.local import Trade
from dapperfl.runtime.optimiser import TrainSettings
from dapperfl.runtime.precision import Precision
from dapperfl.sim import plan
from dapperfl.sim.plan import Plan, fastest

CORES = 4


def chosen(monkeypatch, seconds: dict[tuple[int, bool], float], precision: Precision = "fp32"):
    """Choose among times by threads and memory format."""
    monkeypatch.setattr(plan, "cores", lambda: CORES)
    monkeypatch.setattr(plan, "_seconds", lambda _, __, p: seconds[p.threads, p.channels_last])
    trade = Trade(FedAvg(), tiny_net(), TrainSettings(), precision)
    return fastest(trade, None, CORES)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("seconds", "best"),
    [
        # four clients at once in 4 s are one a second, which no single one beats
        ({(1, False): 4, (1, True): 5, (4, False): 2, (4, True): 2}, Plan(4, 1)),
        ({(1, False): 4, (1, True): 3, (4, False): 2, (4, True): 2}, Plan(4, 1, True)),
        ({(1, False): 4, (1, True): 4, (4, False): 2, (4, True): 0.9}, Plan(1, 4, True)),
        ({(1, False): 4, (1, True): 4, (4, False): 0.9, (4, True): 2}, Plan(1, 4)),
    ],
)
def test_the_quickest_way_is_chosen(monkeypatch, seconds, best):
    assert chosen(monkeypatch, seconds) == best


def test_lower_precisions_have_channels_last_anyway(monkeypatch):
    seconds = {(1, True): 4.0, (4, True): 2.0}
    assert chosen(monkeypatch, seconds, "bf16") == Plan(4, 1, True)


def test_a_plan_can_be_read():
    assert str(Plan(2, 1, True)) == "2 × 1 threads, channels_last"
