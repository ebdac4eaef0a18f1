"""How many runs look while they go: one live view on a terminal, plain lines in a pipe."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from statistics import fmean

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from dapperfl.lab.display import clock
from dapperfl.lab.schedule.jobs import Job, Outcome, Progress

_SECONDS_BETWEEN_LINES = 10


@contextmanager
def watched_all(
    console: Console, jobs: Sequence[Job]
) -> Iterator[Callable[[Progress | Outcome], None]]:
    """Yield what `run_all` shows its events to.

    A terminal gets a live view, and a line that stays for each run that fails. A pipe gets a line
    for each run that ends, and one on how far all are when there was none for a while.
    """
    board = Board(jobs)
    printed = time.monotonic()

    def write(text: str) -> None:
        nonlocal printed
        printed = time.monotonic()
        console.print(text, soft_wrap=True, markup=False, highlight=False)

    def show(event: Progress | Outcome) -> None:
        was_run = event.job.out in board.running
        board.add(event)
        if isinstance(event, Outcome):
            if event.error is not None or not console.is_terminal:
                write(board.ending(event, was_run))
        elif not console.is_terminal and time.monotonic() - printed >= _SECONDS_BETWEEN_LINES:
            write(board.overview())

    live = Live(board, console=console, refresh_per_second=2, transient=True)
    with live if console.is_terminal else nullcontext():
        yield show


class Board:
    """How far all runs are; on a terminal, what the live view draws again and again."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self.jobs = {job.out: job for job in jobs}
        self.running: dict[Path, Progress] = {}
        self.ended: dict[Path, Outcome] = {}
        self._rounds = dict.fromkeys(self.jobs, 0)
        self._pace: dict[Path, float] = {}  # seconds a round
        self._last = time.monotonic()

    def add(self, event: Progress | Outcome) -> None:
        """Take in what has happened."""
        out = event.job.out
        self._last = time.monotonic()
        if isinstance(event, Progress):
            self.running[out] = event
            self._rounds[out] = event.round
            if event.seconds is not None:
                self._pace[out] = event.seconds
            return
        self.running.pop(out, None)
        self.ended[out] = event
        if event.summary is not None:
            self._rounds[out] = event.job.config.rounds

    def seconds_left(self) -> float | None:
        """Estimate the time to the end: runs that have not begun take as long as the others."""
        if not self._pace:
            return None
        usual = fmean(self._pace.values())
        rest = [
            (job.config.rounds - self._rounds[out]) * self._pace.get(out, usual)
            for out, job in self.jobs.items()
            if out not in self.ended
        ]
        expected = max(sum(rest) / max(1, len(self.running)), *rest, 0.0)
        return max(0.0, expected - (time.monotonic() - self._last))

    def overview(self) -> str:
        """Return how far all are, as one line."""
        done, total = self._count()
        return f"{done}/{total} rounds  {self._runs()}  {self._left()}".rstrip()

    def ending(self, outcome: Outcome, was_run: bool) -> str:
        """Return how a run ended, as one line."""
        start = f"[{len(self.ended)}/{len(self.jobs)}] {outcome.job.name}"
        if outcome.summary is None:
            return f"{start}  failed: {outcome.error}"
        marks, seconds = outcome.summary["global_accuracy"], outcome.summary["seconds"]
        when = "" if was_run else "  (was finished before)"
        return (
            f"{start}  best {marks['best']:.1f}  last {marks['last']:.1f}  {clock(seconds)}{when}"
        )

    def _count(self) -> tuple[int, int]:
        done = sum(self._rounds.values())
        lost = sum(
            outcome.job.config.rounds - self._rounds[out]
            for out, outcome in self.ended.items()
            if outcome.summary is None
        )
        return done, sum(job.config.rounds for job in self.jobs.values()) - lost

    def _runs(self) -> str:
        failed = sum(outcome.summary is None for outcome in self.ended.values())
        words = [f"{len(self.ended) - failed}/{len(self.jobs)} runs done"]
        words += [f"{failed} failed"] if failed else []
        words += [f"{len(self.running)} running"] if self.running else []
        return ", ".join(words)

    def _left(self) -> str:
        left = self.seconds_left()
        return "" if left is None else f"{clock(left)} left"

    def __rich__(self) -> RenderableType:
        done, total = self._count()
        head = Table.grid(padding=(0, 2))
        bar = ProgressBar(total=max(1, total), completed=done, width=30)
        head.add_row(f"{done}/{total} rounds", bar, self._left())
        return Group(head, self._runs(), self._table()) if self.running else Group(head)

    def _table(self) -> Table:
        table = Table()
        table.add_column("run", overflow="fold")
        for name in ("device", "round", "last [%]", "best [%]", "s/round"):
            table.add_column(name, justify="right", no_wrap=True)
        for each in [self.running[out] for out in self.jobs if out in self.running]:
            table.add_row(
                Text(each.job.name),  # brackets are no markup
                each.device,
                f"{each.round}/{each.job.config.rounds}",
                _number(each.last, 1),
                _number(each.best, 1),
                _number(each.seconds, 2),
            )
        return table


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
