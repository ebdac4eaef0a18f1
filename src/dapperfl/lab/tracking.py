"""Rounds told to an experiment tracker, beside `rounds.jsonl`, which is always written.

A tracker is a class of two methods. `--track tensorboard` takes the one below, and
`--track package.module:Class` anybody's own; docs/tutorial.md has an example.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Protocol

from dapperfl.errors import ConfigError
from dapperfl.lab.config import Config, to_toml
from dapperfl.lab.experiment import Experiment
from dapperfl.lab.records import RoundLine, domain_column
from dapperfl.naming import did_you_mean, load_object


class Tracker(Protocol):
    """What is told of a run while it goes."""

    def add(self, line: RoundLine) -> None:
        """Take in a round that is on the disk."""

    def close(self) -> None:
        """Finish; the run is done, interrupted or has failed."""


# It is called with the run folder, the config, and the rounds that were done before, in brief: a
# run that is continued tells them again, so that a tracker can drop what it had beyond them.
MakeTracker = Callable[[Path, Config, Sequence[RoundLine]], Tracker]


def load_tracker(name: str) -> MakeTracker:
    """Return the tracker of a name, or of `package.module:Class`.

    Raises:
        ConfigError: there is no such tracker, or its package is not installed.
    """
    if ":" in name:
        found: MakeTracker = load_object(name)
        return found
    if name != "tensorboard":
        raise ConfigError(
            f"--track {name}: there is no such tracker{did_you_mean(name, ['tensorboard'])}, or "
            "name your own as package.module:Class"
        )
    _summary_writer()
    return TensorBoard


@contextmanager
def tracked(
    trackers: Iterable[MakeTracker], experiment: Experiment
) -> Iterator[Callable[[RoundLine], None]]:
    """Open trackers for a run, yield what to tell each round to, and close them."""
    with ExitStack() as stack:
        opened = []
        for make in trackers:
            tracker = make(experiment.folder.path, experiment.config, tuple(experiment.lines))
            stack.callback(tracker.close)
            opened.append(tracker)

        def tell(line: RoundLine) -> None:
            for tracker in opened:
                tracker.add(line)

        yield tell


def _summary_writer() -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ConfigError(
            f"--track tensorboard needs a package that is not installed ({error.name or error}); "
            'run: pip install "dapperfl[tensorboard]"'
        ) from error
    return SummaryWriter


class TensorBoard:
    """Writes events into the run folder: `tensorboard --logdir runs` shows all runs there.

    Event files cannot be cut back, so a continued run writes them anew from its rounds; then every
    round is there once, however often the run was killed.
    """

    def __init__(self, folder: Path, config: Config, past: Sequence[RoundLine]) -> None:
        place = folder / "tensorboard"
        for old in place.glob("events.out.tfevents.*"):
            old.unlink()
        self._writer: Any = _summary_writer()(str(place))
        self._writer.add_text("config", f"```toml\n{to_toml(config)}```", 0)
        for line in past:
            self.add(line)

    def add(self, line: RoundLine) -> None:
        """Write a round, on the disk before this returns."""
        for name, value in scalars(line).items():
            self._writer.add_scalar(name, value, line.round)
        self._writer.flush()

    def close(self) -> None:
        """Close the file."""
        self._writer.close()


def scalars(line: RoundLine) -> dict[str, float]:
    """Return the numbers of a round that make curves, by the names that trackers show."""
    found = {"accuracy/mean": line.mean, "seconds": line.seconds}
    found |= {
        f"accuracy/{domain_column(domain, ('mean',))}": value
        for domain, value in line.accuracy.items()
    }
    found |= {f"validation/{domain}": value for domain, value in line.validation.items()}
    found["left_out"] = len(line.left_out)
    return found if line.loss is None else found | {"loss": line.loss}
