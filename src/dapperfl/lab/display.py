"""How a run looks, while it goes and when it is done, on a terminal and in a pipe."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from dapperfl.core.messages import Device
from dapperfl.data.benchmark import Federation
from dapperfl.lab.engine import choose
from dapperfl.lab.experiment import Experiment
from dapperfl.lab.records import RoundLine
from dapperfl.lab.rehearsal import Rehearsal
from dapperfl.naming import one_line

_DEVICES_SHOWN = 20
_CLASSES_SHOWN = 10


def header(experiment: Experiment) -> RenderableType:
    """Say what runs, on which devices."""
    config, fleet = experiment.config, experiment.snapshot.server.fleet
    width = "" if config.net.width is None else f" of width {config.net.width}"
    what = Text.assemble(
        (config.method.name, "bold"),
        f" ({config.method.preset}) on ",
        (config.data.benchmark, "bold"),
        f", {config.net.name}{width}",
    )
    how = f"{len(fleet)} devices, {config.rounds} rounds, seed {config.seed}"
    engine = choose(config.engine)
    where = f"on {engine.device}, run folder {experiment.folder.path}"
    begun = len(experiment.lines)
    past = [f"continued after round {begun}"] if begun else []
    pictures = _pictures(experiment.simulator.federation)
    return Group(what, f"{how}, {where}", engine.about, *past, pictures, _allocation(fleet))


def _pictures(world: Federation) -> str:
    """Say what is told apart, and how many of the pictures take part: a fifth of them may do."""
    names = [one_line(name) for name in world.classes]
    more = len(names) - _CLASSES_SHOWN
    shown = ", ".join(names[:_CLASSES_SHOWN]) + (f" and {more:,} more" if more > 0 else "")
    held = sum(device.num_samples for device in world.devices)
    some = f"{held:,} of the" if held < world.available else "all"
    why = " (data.fraction)" if held < world.available else ""
    return (
        f"{len(names):,} class{'es' if len(names) > 1 else ''}: {shown}; "
        f"devices train on {some} {world.available:,} pictures there are{why}"
    )


def _allocation(fleet: Sequence[Device]) -> RenderableType:
    table = _table("who holds what", "device", "domain", "rho", "samples")
    for device in fleet[:_DEVICES_SHOWN]:
        table.add_row(str(device.id), device.domain, f"{device.rho:g}", f"{device.num_samples:,}")
    hidden = len(fleet) - _DEVICES_SHOWN
    return Group(table, f"… and {hidden} more, all in allocation.json") if hidden > 0 else table


def _table(title: str, first: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column(first, overflow="fold")
    for name in columns:
        table.add_column(name, justify="left" if name == "domain" else "right")
    return table


@contextmanager
def watched(console: Console, experiment: Experiment) -> Iterator[Callable[[RoundLine], None]]:
    """Show each round it is given: in a live view on a terminal, else as a line of its own."""
    progress = Progress(experiment.config.rounds, experiment.lines)

    def show(line: RoundLine) -> None:
        progress.add(line)
        if not console.is_terminal:
            console.print(progress.plain(line), soft_wrap=True, markup=False, highlight=False)

    live = Live(progress, console=console, refresh_per_second=2, transient=True)
    with live if console.is_terminal else nullcontext():
        yield show


class Progress:
    """How far a run is; on a terminal, what the live view draws again and again."""

    def __init__(self, rounds: int, lines: Sequence[RoundLine]) -> None:
        self.rounds = rounds
        self.lines = list(lines)
        self._before = len(lines)  # rounds of an earlier process say nothing about speed
        self._last = time.monotonic()

    def add(self, line: RoundLine) -> None:
        """Take in one more round."""
        self.lines.append(line.brief())
        self._last = time.monotonic()

    def seconds_left(self) -> float | None:
        """Estimate the time to the end from this process's rounds."""
        seen = [line.seconds for line in self.lines[self._before :]]
        if not seen:
            return None
        expected = sum(seen) / len(seen) * (self.rounds - len(self.lines))
        return max(0.0, expected - (time.monotonic() - self._last))

    def plain(self, line: RoundLine) -> str:
        """Return a round as one line of text."""
        found = line.accuracy.items()
        domains = "  ".join(f"{one_line(name)} {value:.1f}" for name, value in found)
        return (
            f"round {line.round}/{self.rounds}  mean {line.mean:.1f}  {domains}  "
            f"loss {_loss(line)}  {line.seconds:.1f} s  {self._left()}{_absences(line)}"
        )

    def _left(self) -> str:
        left = self.seconds_left()
        return "" if left is None else f"{clock(left)} left"

    def __rich__(self) -> RenderableType:
        done = len(self.lines)
        bar = Table.grid(padding=(0, 2))
        bar.add_row(
            f"round {done}/{self.rounds}",
            ProgressBar(total=self.rounds, completed=done, width=30),
            self._left() or f"{clock(time.monotonic() - self._last)} gone",
        )
        return Group(bar, *self._last_round()) if self.lines else bar

    def _last_round(self) -> Iterator[RenderableType]:
        last = self.lines[-1]
        table = _table("", "accuracy [%]", "last", "best")
        table.title = None
        for domain, value in last.accuracy.items():
            best = max(line.accuracy[domain] for line in self.lines)
            table.add_row(domain, f"{value:.1f}", f"{best:.1f}")
        best = max(line.mean for line in self.lines)
        table.add_section()
        table.add_row("mean", f"{last.mean:.1f}", f"{best:.1f}", style="bold")
        yield table
        yield f"loss {_loss(last)}, {last.seconds:.1f} s for the last round{_absences(last)}"


def _loss(line: RoundLine) -> str:
    return "-" if line.loss is None else f"{line.loss:.3f}"


def _absences(line: RoundLine) -> str:
    # The reasons have been logged, and so shown, when the clients were left out.
    ids = sorted({absence.id for absence in line.left_out})
    return f"  without device {', '.join(map(str, ids))}" if ids else ""


def results(summary: Mapping[str, Any]) -> RenderableType:
    """Draw a finished run's tables: accuracy by domain, cost by level."""
    where = " on pictures kept aside" if summary.get("blind") else ""
    heads = ("domain", "best round", "last round", "mean of last five")
    accuracy = _table(f"accuracy [%]{where}", *heads)
    for domain, marks in summary["domain_accuracy"].items():
        accuracy.add_row(domain, *_marks(marks))
    accuracy.add_section()
    accuracy.add_row("global (mean)", *_marks(summary["global_accuracy"]), style="bold")
    return Group(accuracy, _levels(summary))


def _marks(marks: Mapping[str, float]) -> Iterator[str]:
    return (f"{marks[name]:.2f}" for name in ("best", "last", "last5"))


def _levels(summary: Mapping[str, Any]) -> Table:
    columns = ("parameters", "of dense", "MACs", "train FLOPs", "upload", "accuracy")
    table = _table("levels: the shrunk net, per image, and its mean accuracy", "rho", *columns)
    for level in summary["levels"]:
        table.add_row(
            f"{level['rho']:g}",
            human(level["parameters"]),
            f"{100 * level['parameters'] / summary['dense']['parameters']:.1f} %",
            human(level["macs"]),
            human(level["train_flops"]),
            f"{human(level['upload_bytes'])}B",
            "–" if level["mean_accuracy"] is None else f"{level['mean_accuracy']:.1f}",
        )
    return table


def rehearsed(rehearsal: Rehearsal, pictures: int) -> Table:
    """Draw what a round asks of a device of each level; nothing is cut off, but wrapped."""
    table = Table(
        title=f"a device of {pictures:,} pictures, in a round on this machine",
        title_justify="left",
        title_style="bold",
    )
    heads = ("rho", "parameters", "of dense", "held", "MACs", "sent", "received", "trains")
    for head in heads:
        table.add_column(head, justify="right", overflow="fold")
    for part in rehearsal.parts:
        level, spent = part.level, part.spent
        table.add_row(
            f"{level.rho:g}",
            human(level.parameters),
            f"{100 * level.parameters / rehearsal.dense:.1f} %",
            human(spent.peak_parameters) if spent else "–",
            human(level.macs),
            f"{human(spent.bytes_up)}B" if spent else "–",
            f"{human(spent.bytes_down)}B" if spent else "–",
            _duration(part.seconds, pictures),
        )
    return table


def _duration(seconds: float | None, pictures: int) -> str:
    if seconds is None:
        return "never"
    whole = seconds * pictures
    return f"{whole:.1f} s" if whole < 100 else clock(whole)


def human(number: float) -> str:
    """Write a count with three digits and a decimal prefix, ready for its unit."""
    prefixes = ["", "k", "M", "G", "T", "P"]
    while number >= 999.5 and len(prefixes) > 1:
        number /= 1000
        prefixes.pop(0)
    digits = 0 if not prefixes[0] or number >= 99.95 else 1 if number >= 9.995 else 2
    return f"{number:.{digits}f} {prefixes[0]}"


def clock(seconds: float) -> str:
    """Write a duration as m:ss or h:mm:ss."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
