"""The ServerApp: an ordinary run in an ordinary run folder, whose clients are real devices."""

import logging
import os
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from dapperfl.core.messages import Device
from dapperfl.core.net import Batch
from dapperfl.data.benchmark import Federation
from dapperfl.errors import ConfigError, RunError
from dapperfl.flower.desk import Desk, noted
from dapperfl.flower.kit import build_kit, modules_of
from dapperfl.flower.place import RUN, Place
from dapperfl.flower.post import Post
from dapperfl.flower.roster import Roster, able, only
from dapperfl.flower.runner import FlowerRunner
from dapperfl.flower.terms import terms_of
from dapperfl.lab.build import build_on
from dapperfl.lab.config import Config
from dapperfl.lab.continuing import finished_summary
from dapperfl.lab.experiment import Experiment, opened
from dapperfl.lab.folder import RunFolder
from dapperfl.lab.resolve import resolve
from dapperfl.lab.world import known_world, planned, settled, wanted
from dapperfl.runtime.guard import knowing_pictures
from dapperfl.runtime.inbox import Inbox
from dapperfl.runtime.wire import Codec
from dapperfl.sim.simulator import Simulator

_NAMED = 10  # missing devices in a message
logger = logging.getLogger(__name__)
app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Serve the run whose folder the environment names, to its end."""
    out = Path(os.environ[RUN])
    desk = Desk(Place(out))
    with RunFolder(desk.place.folder).held(), noted(desk.place.notes):
        try:
            desk.tell("starting")  # reading the pictures may take long
            serve(resolve(desk.place.config), out, Post(grid), desk)
        except BaseException as error:
            desk.tell_failure(f"{error}" or type(error).__name__)
            raise


def serve(config: Config, out: Path, post: Post, desk: Desk) -> None:
    """Run a config to its end on the devices that can be reached, from wherever it was."""
    # A server that takes over asks its round again; one that is over, no device would repeat.
    config = replace(config, checkpoint_every=1)
    if finished_summary(config, out) is None:
        runs, begun = Assembly(config, out, post, desk), RunFolder(out).is_used()
        with opened(config, out, resume=begun, make=runs.make) as experiment:
            if experiment.lines and not experiment.simulator.judge.test:
                experiment.simulator.measured |= experiment.lines[-1].accuracy
            runs.run(experiment)
    desk.tell("finished")


class Assembly:
    """Brings devices together, and then a simulator that works through them."""

    def __init__(self, config: Config, out: Path, post: Post, desk: Desk) -> None:
        self.config, self.post, self.desk = config, post, desk
        self.folder = RunFolder(out)
        self.world = known_world(config)
        terms = terms_of(config, self.world, desk.run_name())
        self.kit = build_kit(terms, modules_of(config))
        deploy, accept = config.deploy, able(self.kit.trade, self.kit.graph)
        self.roster = Roster(
            post,
            self.kit.codec,
            terms.encode(),
            deploy.guard,
            deploy.deadline,
            accept,
            desk.read_keyring(),
            desk.write_claims,
        )

    def make(self, config: Config) -> Simulator:
        """Wait for the devices, and build a simulator whose clients they are.

        Raises:
            ConfigError: No round could have the replies that it needs.
            RunError: Too few have come.
        """
        world = self._joined()
        engine = replace(config.engine, name="loop")
        simulator = build_on(
            replace(config, engine=engine), world, min_replies=config.deploy.min_replies
        )
        if config.deploy.min_replies > simulator.cohort_size:  # no round would count, ever
            raise ConfigError(
                f"deploy.min_replies = {config.deploy.min_replies}, but a round asks "
                f"{simulator.cohort_size} devices; ask for fewer replies"
            )
        codec = Codec.of(simulator.net, simulator.graph, fp16=config.deploy.fp16)
        run, ledger = self.kit.terms.run, self.desk.read_ledger()
        known = not config.deploy.devices_bring_pictures
        guard = knowing_pictures(config.deploy.guard, self.kit.terms.mean, self.kit.terms.std)
        self.inbox = Inbox(codec, run, settings=guard, ledger=ledger, known_samples=known)
        images = torch.zeros(2, *world.shape, device=simulator.device)
        example = Batch(images, torch.zeros(2, dtype=torch.int64, device=simulator.device))
        trade = replace(self.kit.trade, template=simulator.net)
        simulator.runner = FlowerRunner(
            self.post, self.roster, self.inbox, trade, example, config.deploy.deadline
        )
        return simulator

    def run(self, experiment: Experiment) -> None:
        """Run the rounds that are missing, and finish."""
        self._tell_running()
        told = False
        for _ in experiment.rounds():
            self.desk.write_ledger(self.inbox.ledger)
            self._tell_running()
            told = told or _told_unmeasured(experiment)
        experiment.finish()

    def _tell_running(self) -> None:
        self.desk.tell("running", self._refused(), len(self.roster.nodes))

    def _refused(self) -> str:
        refused = self.roster.refused
        return f"{refused} that wanted to join were refused" if refused else ""

    def _joined(self) -> Federation:
        """Wait until enough devices are there, and settle who belongs to the run."""
        known = planned(self.world, self.folder)
        own = self.config.deploy.devices_bring_pictures
        if known:
            self.roster.accept = only({each.id: each for each in known}, samples=not own)
        self._wait(wanted(self.config, known), known)
        fleet = known or tuple(self.roster.devices[each] for each in self.roster.nodes)
        self.roster.accept = only({each.id: each for each in fleet}, samples=not own)
        return settled(self.world, fleet)

    def _wait(self, number: int, known: Collection[Device]) -> None:
        roster, patience = self.roster, self.config.deploy.patience
        told: list[int] = []

        def enough() -> bool:
            if told != [len(roster.nodes)]:
                told[:] = [len(roster.nodes)]
                message = f"{len(roster.nodes)} of {number} devices have joined"
                self.desk.tell("waiting", message, len(roster.nodes))
            return len(roster.nodes) >= number

        roster.look(enough, patience)
        if not enough():
            missing = [str(each.id) for each in known if each.id not in roster.nodes]
            named = f"; missing: {', '.join(missing[:_NAMED])}" if missing else ""
            refused = f"; {self._refused()}, see above" if roster.refused else ""
            raise RunError(
                f"{len(roster.nodes)} of {number} devices joined within {patience:g} s{named}"
                f"{refused}; start the others, or ask for fewer with deploy.devices"
            )


def _told_unmeasured(experiment: Experiment) -> bool:
    """Warn if the accuracy of a domain is that of nothing; return whether that was said."""
    if experiment.simulator.judge.test:
        return False
    known = {domain for line in experiment.lines for domain in line.on_devices}
    if unknown := sorted(set(experiment.simulator.measured) - known):
        logger.warning(
            "no device has measured the model on %s so far: its accuracy is shown as 0; let one "
            "join with more pictures, or with --keep-aside above 0",
            ", ".join(unknown),
        )
    return bool(unknown)
