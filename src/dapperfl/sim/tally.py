"""What a round cost and who was left out, counted while replies stream by."""

import logging
from collections.abc import Iterator
from math import nan

from dapperfl.core.masks import pack
from dapperfl.core.messages import ClientCost, ClientUpdate, Device, LeftOut, Moments

logger = logging.getLogger(__name__)


class Tally:
    """Counts what a round cost and who was left out, while replies stream by."""

    def __init__(self) -> None:
        self.costs: dict[int, ClientCost] = {}
        self.left_out: list[LeftOut] = []
        self.present: list[Device] = []
        self.losses: list[tuple[float, int]] = []
        self.kept: dict[float, dict[str, str]] = {}  # masks of each level's first cut net

    def watch(self, replies: Iterator[ClientUpdate | LeftOut]) -> Iterator[ClientUpdate]:
        """Pass updates on, and note what they cost; those left out end here."""
        for reply in replies:
            if isinstance(reply, LeftOut):
                self._leave_out(reply)
            else:
                self.present.append(reply.device)
                self.costs[reply.device.id] = reply.cost
                self.losses.append((reply.metrics["loss"], reply.num_samples))
                if reply.device.rho not in self.kept and reply.model.submodel.kept:
                    self.kept[reply.device.rho] = pack(reply.model.submodel)
                yield reply

    def watch_moments(self, replies: Iterator[Moments | LeftOut]) -> Iterator[Moments]:
        """Pass moments on; their cost comes on top of the training's."""
        for reply in replies:
            if isinstance(reply, LeftOut):
                self._leave_out(reply)
            else:
                self.costs[reply.device.id] += reply.cost
                yield reply

    def loss(self) -> float:
        """Return the mean loss of the last local epoch, weighted by samples."""
        total = sum(samples for _, samples in self.losses)
        return sum(loss * samples for loss, samples in self.losses) / total if total else nan

    def _leave_out(self, reply: LeftOut) -> None:
        logger.warning("device %d is left out: %s", reply.device.id, reply.reason)
        self.left_out.append(reply)
