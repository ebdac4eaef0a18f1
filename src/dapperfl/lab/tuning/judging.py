"""One trial: a config judged on what its devices keep aside, never on a test set."""

import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from dapperfl.data.benchmark import Federation
from dapperfl.errors import DapperFLError, RunError
from dapperfl.lab.build import build_on, load_federation
from dapperfl.lab.config import Config, FleetConfig
from dapperfl.lab.summary import marks


@dataclass(frozen=True)
class Step:
    """One more round is done; whoever reads this may leave it at that."""

    number: int  # rounds over all seeds
    score: float  # of the running seed so far


@dataclass(frozen=True)
class Done:
    """All rounds of all seeds are done."""

    score: float
    validation: Mapping[str, float]  # by domain
    left_out: int = 0  # client rounds without an update


@dataclass(frozen=True)
class Broken:
    """It cannot go on; a hopeless one because of its values, such as weights that became nan."""

    error: str
    hopeless: bool = False
    traceback: str = ""  # only of what was not raised on purpose


Message = Step | Done | Broken


class Judge:
    """Tries the configs of one study; the pictures, which are the same in all, are held."""

    def __init__(self) -> None:
        self._held: dict[tuple[int, FleetConfig], Federation] = {}

    def judge(self, config: Config, seeds: Sequence[int]) -> Iterator[Message]:
        """Run a config with one seed after another; the last message is how it ended."""
        try:
            yield from self._rounds(config, seeds)
        except DapperFLError as error:
            yield Broken(str(error), hopeless=isinstance(error, RunError))
        except Exception as error:  # the border of a trial: the others go on
            yield Broken(f"{type(error).__name__}: {error}", traceback=traceback.format_exc())

    def _rounds(self, config: Config, seeds: Sequence[int]) -> Iterator[Step | Done]:
        domains, left_out = [], 0
        for index, seed in enumerate(seeds):
            own = replace(config, seed=seed)
            simulator = build_on(own, self._federation(own))
            rounds: list[Mapping[str, float]] = []  # accuracy by domain, on what is kept aside
            for record in simulator.rounds():
                rounds.append(record.accuracy)
                left_out += len(record.left_out)
                yield Step(index * config.rounds + record.round_num, score_of(rounds))
            domains.append(
                {name: marks([each[name] for each in rounds])["last5"] for name in rounds[0]}
            )
        found = _mean_by_domain(domains)
        yield Done(fmean(found.values()), found, left_out)

    def _federation(self, config: Config) -> Federation:
        key = (config.seed, config.fleet)
        if key not in self._held:
            blind = replace(config, data=replace(config.data, blind=True))
            self._held[key] = load_federation(blind)
        return self._held[key]


def score_of(rounds: Sequence[Mapping[str, float]]) -> float:
    """Return the mean over the last five rounds of the mean over domains."""
    return marks([fmean(accuracy.values()) for accuracy in rounds])["last5"]


def _mean_by_domain(found: Sequence[Mapping[str, float]]) -> dict[str, float]:
    names = dict.fromkeys(name for each in found for name in each)
    return {name: fmean(each[name] for each in found if name in each) for name in names}
