"""How a search looks while it goes, and what it came to."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

from dapperfl.lab.display import clock
from dapperfl.lab.fields import show
from dapperfl.lab.tuning.search import TuneResult
from dapperfl.lab.tuning.trials import START, Progress, Trial, best_of


@contextmanager
def watched_search(
    console: Console, trials: int, rounds: int
) -> Iterator[Callable[[Progress | Trial], None]]:
    """Yield what `tune` shows its events to: a live view on a terminal, else lines.

    Args:
        console: Where to.
        trials: How many there will be, beside the start.
        rounds: Of one trial, over all its seeds.
    """
    board = Board(trials, rounds)

    def show_event(event: Progress | Trial) -> None:
        board.add(event)
        if isinstance(event, Trial) and not console.is_terminal:
            console.print(board.ending(event), soft_wrap=True, markup=False, highlight=False)

    live = Live(board, console=console, refresh_per_second=2, transient=True)
    with live if console.is_terminal else nullcontext():
        yield show_event


class Board:
    """How far a search is; on a terminal, what the live view draws again and again."""

    def __init__(self, trials: int, rounds: int) -> None:
        self.total, self.rounds = trials + 1, rounds
        self.ended: list[Trial] = []
        self.running: dict[int, Progress] = {}
        self._began: float | None = None  # when the first trial of this process did
        self._before = 0  # trials of earlier processes say nothing about speed

    def add(self, event: Progress | Trial) -> None:
        """Take in what has happened."""
        if isinstance(event, Progress):
            if self._began is None:
                self._began, self._before = time.monotonic(), len(self.ended)
            self.running[event.number] = event
        else:
            self.running.pop(event.number, None)
            self.ended.append(event)

    def seconds_left(self) -> float | None:
        """Estimate the time to the end from the trials of this process."""
        done = len(self.ended) - self._before
        if self._began is None or not done:
            return None
        gone = time.monotonic() - self._began
        return gone / done * max(0, self.total - len(self.ended))

    def ending(self, trial: Trial) -> str:
        """Return how a trial ended, as one line."""
        score = trial.error if trial.score is None else f"{trial.score:.2f} %"
        name = "start" if trial.number == START else f"trial {trial.number}/{self.total - 1}"
        words = [name, trial.state, score, values_of(trial.values), self._best(), self._left()]
        return "  ".join(filter(None, words))

    def _best(self) -> str:
        if not any(trial.state == "complete" for trial in self.ended):
            return ""
        best = best_of(self.ended)
        name = "start" if best.number == START else f"trial {best.number}"
        return f"best {best.score:.2f} % ({name})"

    def _left(self) -> str:
        left = self.seconds_left()
        return "" if left is None else f"{clock(left)} left"

    def __rich__(self) -> RenderableType:
        done = len(self.ended)
        head = Table.grid(padding=(0, 2))
        bar = ProgressBar(total=self.total, completed=done, width=30)
        head.add_row(f"{done}/{self.total} trials", bar, self._best(), self._left())
        table = _table("", "trial", "round", "so far [%]", "values")
        for each in self.running.values():
            score = "-" if each.score is None else f"{each.score:.2f}"
            step = f"{each.step}/{self.rounds}"
            table.add_row(str(each.number), step, score, values_of(each.values))
        return Group(head, table) if self.running else head


def values_of(values: Mapping[str, Any]) -> str:
    """Write the values of a trial in one line."""
    return "  ".join(f"{key}={short(value)}" for key, value in values.items())


def short(value: Any) -> str:
    """Write a value with as many digits as people compare."""
    return f"{value:.4g}" if isinstance(value, float) else show(value).strip('"')


def outcome(result: TuneResult) -> RenderableType:
    """Draw the start against the best: values, then accuracy by domain."""
    start, best = result.start, result.best
    table = _table("validation accuracy [%]", "", "start", "best", "difference")
    for domain, before in start.validation.items():
        table.add_row(domain, *_pair(before, best.validation.get(domain)))
    table.add_section()
    table.add_row("mean", *_pair(start.score or 0.0, best.score), style="bold")
    values = _table("values", "", "start", "best")
    for each in result.space:
        values.add_row(each.key, short(start.values[each.key]), short(best.values[each.key]))
    measure = "validation accuracy: mean of the last five rounds, on what devices keep aside"
    return Group(values, table, measure, *_left_out(result), _words(result))


def _pair(before: float, after: float | None) -> tuple[str, str, str]:
    if after is None:
        return f"{before:.2f}", "-", "-"
    return f"{before:.2f}", f"{after:.2f}", f"{after - before:+.2f}"


def _left_out(result: TuneResult) -> list[str]:
    """Say which of the two were judged without some of the devices in a part of the rounds."""
    shown = {"start": result.start, "best": result.best}
    lost = [f"{name} {trial.left_out}" for name, trial in shown.items() if trial.left_out]
    return [f"client rounds whose device was left out: {', '.join(lost)}"] if lost else []


def _words(result: TuneResult) -> str:
    states = [trial.state for trial in result.trials if trial.number != START]
    counts = [f"{states.count(state)} {state}" for state in ("complete", "stopped", "failed")]
    text = f"trials beside the start: {', '.join(counts)}"
    return f"{text}; none was better" if result.best.number == START else text


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title or None, title_justify="left", title_style="bold")
    for number, name in enumerate(columns):
        left = number == 0 or name == "values"
        table.add_column(name, justify="left" if left else "right", overflow="fold")
    return table
