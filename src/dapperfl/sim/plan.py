"""Which way of using the cores is fastest for a net: tried on a few steps of it."""

import time
from dataclasses import dataclass, replace

from dapperfl.core.messages import Assignment
from dapperfl.core.net import Batch
from dapperfl.core.rng import generator
from dapperfl.runtime.local import Trade
from dapperfl.runtime.threads import cores, torch_threads
from dapperfl.sim.loop import with_memory
from dapperfl.sim.slots import SlotNet, Slots
from dapperfl.sim.workers import Job

STEPS = 3  # the fastest of them counts: what disturbs a step only makes it slower


@dataclass(frozen=True)
class Plan:
    """How clients are trained on the cores of a machine."""

    processes: int
    threads: int  # of each process
    channels_last: bool = False

    def __str__(self) -> str:
        layout = "channels_last" if self.channels_last else "contiguous"
        return f"{self.processes} × {self.threads} threads, {layout}"


def fastest(trade: Trade, job: Job, processes: int) -> Plan:
    """Try a client's first batch in every way and return the quickest, per client.

    Args:
        trade: What is trained.
        job: A client's work, on whose data and submodel the steps are tried.
        processes: How many clients could be trained side by side.
    """
    either = [False, True] if trade.precision == "fp32" else [True]
    formats = either if trade.turns else [False]
    plans = [Plan(processes, 1, each) for each in formats]
    if cores() > 1:
        plans += [Plan(1, cores(), each) for each in formats]
    return min(plans, key=lambda plan: _seconds(trade, job, plan) / plan.processes)


def _seconds(trade: Trade, job: Job, plan: Plan) -> float:
    """Return the time of one training step; nothing of it is kept."""
    assert isinstance(job.task, Assignment)
    assert job.data is not None
    trade = replace(trade, turns=plan.channels_last)
    batch: Batch = next(iter(job.data.epoch(generator(0, "plan"))))
    work = with_memory(job.task, job.memory)
    local = SlotNet(Slots(trade), 0, work, trade.method.own(work))
    times = []
    with torch_threads(plan.threads):
        for _ in range(STEPS + 1):  # the first one warms up
            began = time.perf_counter()
            local.run_epoch([batch])
            times.append(time.perf_counter() - began)
    return min(times[1:])
