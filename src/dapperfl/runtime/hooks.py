"""A method's hooks on a client, called so that a mistake in one of them is named.

Whoever writes a method of their own forgets a `return`, or changes a tensor in place that the next
device starts from. Both would show far from where they were made, or not at all.
"""

from collections.abc import Iterable

from torch import Tensor

from dapperfl.core.messages import LocalModel, Report, Work
from dapperfl.core.net import Batch, Net
from dapperfl.core.state import State
from dapperfl.errors import RunError
from dapperfl.methods.base import Method


class Given:
    """Tensors that hooks read and must leave as they are."""

    def __init__(self, **states: State) -> None:
        self.states = states
        self.versions = {place: _versions(state) for place, state in states.items()}

    @classmethod
    def to(cls, work: Work) -> "Given":
        """Look at all that a client was given."""
        parts = {"model.weights": work.model.weights, "shared": work.shared, "memory": work.memory}
        return cls(**parts)

    def check(self, method: Method, hook: str, name: str = "work") -> None:
        """Refuse what a hook has done to them.

        Raises:
            RunError: If one was changed in place.
        """
        for place, state in self.states.items():
            if _versions(state) != self.versions[place]:
                raise RunError(
                    f"{type(method).__name__}.{hook} changes {name}.{place} in place, which others "
                    "read too; make new tensors"
                )


def _versions(state: State) -> list[int]:
    """Count how often each tensor was changed; those in one block of memory count together."""
    return [tensor._version for tensor in state.values()]


def loss_of(method: Method, net: Net, batch: Batch, work: Work) -> Tensor:
    """Return a method's loss of a batch."""
    loss = method.loss(net, batch, work)
    if not isinstance(loss, Tensor):
        raise _wrong(method, "loss", loss, "a tensor of one number")
    return loss


def model_of(method: Method, epoch: int, model: LocalModel, work: Work) -> LocalModel:
    """Return the model that a client goes on with after an epoch."""
    given = Given(weights=model.weights)
    after = method.after_epoch(epoch, model, work)
    if not isinstance(after, LocalModel):
        raise _wrong(method, "after_epoch", after, "a LocalModel")
    if after is model:  # and what was done to it would be lost
        given.check(method, "after_epoch", "local")
    return after


def report_of(method: Method, net: Net, batches: Iterable[Batch], work: Work) -> Report:
    """Return what a client sends beside its weights, and what it keeps."""
    report = method.report(net, batches, work)
    if not isinstance(report, Report):
        raise _wrong(method, "report", report, "a Report")
    for place, state in (("shared", report.shared), ("memory", report.memory)):
        for name, value in state.items():
            if not isinstance(value, Tensor):
                raise _wrong(method, "report", value, f'a tensor in {place}["{name}"]')
    return report


def _wrong(method: Method, hook: str, found: object, wanted: str) -> RunError:
    kind = "None: is a return missing?" if found is None else f"a {type(found).__name__}"
    return RunError(f"{type(method).__name__}.{hook} must return {wanted}, not {kind}")
