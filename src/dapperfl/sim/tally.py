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
        self.losses: dict[int, tuple[float, int]] = {}  # by device id, with the samples
        self.tests: dict[str, list[tuple[float, float]]] = {}  # tested and correct, by domain
        self.rounding: float | None = None  # the largest share of an update that 16 bits lost
        self._masks: dict[float, tuple[int, dict[str, str]]] = {}  # of a device, by level

    def watch(self, replies: Iterator[ClientUpdate | LeftOut]) -> Iterator[ClientUpdate]:
        """Pass updates on, and note what they cost; those left out end here."""
        for reply in replies:
            if isinstance(reply, LeftOut):
                self._leave_out(reply)
            else:
                self._note(reply)
                yield reply
            del reply  # while the next one is on its way, this one must not be held

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
        # In the order of devices: that of real replies is nobody's choice.
        losses = [self.losses[device] for device in sorted(self.losses)]
        total = sum(samples for _, samples in losses)
        return sum(loss * samples for loss, samples in losses) / total if total else nan

    def kept(self) -> dict[float, dict[str, str]]:
        """Return the masks of each level's first device, by its id, that cut its net."""
        return {rho: masks for rho, (_, masks) in sorted(self._masks.items())}

    def on_devices(self) -> dict[str, float]:
        """Return what devices measured of the model they were sent: percent, by domain."""
        return {
            domain: 100 * sum(right for _, right in found) / sum(tested for tested, _ in found)
            for domain, found in sorted(self.tests.items())
        }

    def _note(self, update: ClientUpdate) -> None:
        device, metrics = update.device, update.metrics
        self.present.append(device)
        self.costs[device.id] = update.cost
        self.losses[device.id] = metrics["loss"], update.num_samples
        if metrics.get("tested", 0) > 0:
            found = self.tests.setdefault(device.domain, [])
            found.append((metrics["tested"], metrics.get("correct", 0)))
        if (lost := metrics.get("rounding")) is not None:
            self.rounding = max(lost, self.rounding or 0.0)
        first, _ = self._masks.get(device.rho, (device.id + 1, {}))
        if update.model.submodel.kept and device.id < first:
            self._masks[device.rho] = device.id, pack(update.model.submodel)

    def _leave_out(self, reply: LeftOut) -> None:
        logger.warning("device %d is left out: %s", reply.device.id, reply.reason)
        self.left_out.append(reply)
