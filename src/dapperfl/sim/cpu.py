"""Clients on all cores: this process trains, and worker processes help once it pays.

Every client is trained by one thread in one process, in nets that stay (`slots`), and replies come
in the order of the work. So the number of workers decides how long a round takes and nothing else.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import cast

from torch import Tensor, nn

from dapperfl.core.messages import Assignment, ClientUpdate, LeftOut, Moments, StatisticsTask
from dapperfl.core.state import State
from dapperfl.runtime.local import Trade
from dapperfl.runtime.threads import cores, torch_threads
from dapperfl.runtime.training import ClientData
from dapperfl.sim.errands import Done, Setup, do
from dapperfl.sim.graphs import GraphRunner
from dapperfl.sim.loop import answer
from dapperfl.sim.plan import Plan, fastest
from dapperfl.sim.workers import Crew, Job, Jobs

PATIENCE = 1.0  # seconds of work before helpers are called: they need about three to come
AHEAD = 3  # jobs laid out for each worker, whose replies may have to wait for earlier ones
logger = logging.getLogger(__name__)


@dataclass
class CpuRunner:
    """Trains clients side by side, each with one thread.

    Args:
        trade: Method, net and optimiser.
        data: Every client's data.
        seed: The run's seed.
        workers: Clients trained at the same time; None: as many as there are cores.
        exact: Whether every bit is the plain loop's. If not, threads, processes and the memory
            format are chosen by trying which is fastest.
        patience: Seconds of work that this process does alone before it starts others.
    """

    trade: Trade
    data: Mapping[int, ClientData]
    seed: int
    workers: int | None = None
    exact: bool = True
    patience: float = PATIENCE
    memories: MutableMapping[int, State] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Start nothing yet: a short run ends before a process has started."""
        self.jobs = Jobs()
        self.crew: Crew | None = None
        exactly = Plan(self.workers or cores(), 1, self.trade.turns)
        self.plan = exactly if self.exact else None
        self.worked = 0.0  # seconds, in this process
        self.inside: GraphRunner | None = None

    def train(self, assignments: Iterable[Assignment]) -> Iterator[ClientUpdate | LeftOut]:
        """Train every assigned model; a client that fails is left out with its reason."""
        jobs = (
            Job(each, self.data.get(each.device.id), self.memories.get(each.device.id, {}))
            for each in assignments
        )
        for done in self._answers(jobs):
            reply = cast(ClientUpdate | LeftOut, done.reply)
            if done.memory:  # out of the block it came in, which holds the update as well
                kept = {name: tensor.clone() for name, tensor in done.memory.items()}
                self.memories[reply.device.id] = kept
            yield reply

    def statistics(self, tasks: Iterable[StatisticsTask]) -> Iterator[Moments | LeftOut]:
        """Measure batch-norm moments of the given models."""
        jobs = (Job(each, self.data.get(each.device.id)) for each in tasks)
        return (cast(Moments | LeftOut, done.reply) for done in self._answers(jobs))

    def looking_through(self, net: nn.Module) -> Callable[[Tensor], Tensor]:
        """Return the net itself."""
        return net

    def _answers(self, jobs: Iterator[Job]) -> Iterator[Done]:
        """Have jobs done by whoever is free, and pass the answers on in order."""
        laid_out: deque[Job] = deque()
        try:
            while self._lay_out(jobs, laid_out):
                job = self.jobs.take_unless(laid_out[0])
                if job is not None:
                    self.jobs.finish(job, self._do_here(job))
                    continue
                done = laid_out.popleft().done
                assert done is not None
                yield done
        finally:
            self.jobs.withdraw(laid_out)  # only if the caller stops half-way

    def _lay_out(self, jobs: Iterator[Job], laid_out: deque[Job]) -> bool:
        """Show the next jobs to everybody; tell whether there is any whose answer is awaited."""
        most = 1 + AHEAD * (self.crew.alive if self.crew else 0)
        while len(laid_out) < most and (job := next(jobs, None)) is not None:
            self._call_helpers(job)
            laid_out.append(job)
            self.jobs.offer(job)
        return bool(laid_out)

    def _do_here(self, job: Job) -> Done:
        plan = self._planned(job)
        began = time.perf_counter()
        if self.inside is None:
            trade = replace(self.trade, turns=plan.channels_last)
            self.inside = GraphRunner(trade, self.data, self.seed, branches=1)
        with torch_threads(plan.threads):
            done = do(self.inside, job.task, job.memory)
        self.worked += time.perf_counter() - began
        return done

    def _planned(self, job: Job) -> Plan:
        if self.plan is None and isinstance(job.task, Assignment):
            tried = partial(fastest, self.trade, job, self.workers or cores())
            found = answer(job.task.device, tried)
            if isinstance(found, LeftOut):  # the next client may be able to
                return Plan(1, cores())
            self.plan = found
            self.inside = None  # it may have measured statistics before anything was trained
            logger.info("chosen for this net: %s", self.plan)
        return self.plan or Plan(1, cores())

    def _call_helpers(self, job: Job) -> None:
        """Start the other processes when there has been enough to do for one."""
        plan = self.plan
        if self.crew or plan is None or plan.processes == 1 or self.worked < self.patience:
            return
        trade = replace(self.trade, turns=plan.channels_last)
        setup = Setup(trade, job.task.model.submodel.graph, self.seed)
        self.crew = Crew(self.jobs, setup, plan.processes - 1)
