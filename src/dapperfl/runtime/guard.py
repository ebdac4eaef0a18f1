"""What server and client believe of each other: checks of messages that already fit the net.

Every check returns what it was given, or raises a `MessageError` that says what is wrong. None of
them remembers anything; see `inbox` for that.

How far an update went is its `drift`, in norms of the model that was sent. Training with the
paper's settings stays below 3, even that of a narrow net on a dozen pictures; training that is
about to diverge was seen to reach 60. A hundred is absurd; `clip` is for those who want less.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import isfinite

from dapperfl.core import styles
from dapperfl.core.channels import ChannelGraph
from dapperfl.core.cost import Cost, cost
from dapperfl.core.messages import (
    Assignment,
    ClientCost,
    ClientUpdate,
    Device,
    LocalModel,
    Moments,
    StatisticsTask,
    Work,
)
from dapperfl.core.net import Batch
from dapperfl.core.state import State
from dapperfl.errors import MessageError
from dapperfl.runtime.cargo import variance_of
from dapperfl.runtime.drift import drift, nearer
from dapperfl.runtime.local import PlainNet, Trade
from dapperfl.runtime.rounding import Rounding
from dapperfl.runtime.training import reported
from dapperfl.runtime.wire import Stamp, Task
from dapperfl.settings import Range, check_settings, setting

LARGEST_METRIC = 3.5e38  # that of float32: no honest loss is larger, and no mean can overflow
MOMENT_SLACK = 1e-6  # relative: what rounding may take from a second moment
COST_SLACK = 100  # times the whole net's: a method may hold and run other nets beside it
STYLE_SLACK = 1e-3  # relative: what rounding may add to a mean or deviation of white pictures


@dataclass(frozen=True, kw_only=True)
class GuardSettings:
    """What is believed of messages from elsewhere."""

    max_drift: float = setting(
        100.0, "farthest an update may be from the model sent, in norms of it", Range(above=0)
    )
    clip: float | None = setting(
        None, "updates that went farther than this are cut back to it", Range(above=0)
    )
    max_samples: int = setting(10_000_000, "most samples a device may claim", Range(1))
    max_statistic: float = setting(
        1e12, "largest mean, variance or shared number that is believed", Range(above=0)
    )
    max_style: float = setting(
        1000.0, "largest mean or deviation of a device's pictures that is believed", Range(above=0)
    )
    max_epochs: int = setting(1000, "most epochs a client agrees to", Range(1))
    strikes: int = setting(3, "refused replies in a row that put a device aside", Range(1))

    def __post_init__(self) -> None:
        check_settings(self, "deploy.guard.")


# --- the server's ---


def check_device(device: Device, settings: GuardSettings) -> Device:
    """Check what a device says of itself when it joins."""
    if not 0 <= device.rho < 1:
        raise MessageError(f"rho is {device.rho}, expected at least 0 and below 1")
    _check_samples(device.num_samples, settings)
    return device


def check_stamp(stamp: Stamp, expected: Stamp) -> Stamp:
    """Check that a message belongs to this round of this run."""
    if stamp.run != expected.run:
        raise MessageError(f'the message belongs to another run, "{stamp.run}"')
    if stamp.round_num != expected.round_num:
        raise MessageError(
            f"the message belongs to round {stamp.round_num}, this is round {expected.round_num}"
        )
    return stamp


def check_update(
    update: ClientUpdate, task: Assignment, shared: State, settings: GuardSettings
) -> ClientUpdate:
    """Check an update against what the client was sent; cut back if it went too far.

    Args:
        update: The reply.
        task: What it replies to.
        shared: What an honest client's `shared` looks like; see `expected_shared`.
        settings: What is believed.
    """
    if update.device != task.device:
        raise MessageError(f"the update is of {update.device}, expected {task.device}")
    _check_samples(update.num_samples, settings)
    _check_metrics(update.metrics, settings)
    _check_cost(update.cost, update.model.submodel.graph, update.num_samples * (task.epochs + 1))
    _check_model(update.model, task.model)
    _check_alike(update.shared, shared, "shared ")
    _check_echo(update.shared, task.shared)
    buffers = _buffers(update.model)
    _check_size(buffers | update.shared, settings.max_statistic)
    _check_size({n: t for n, t in update.shared.items() if n == styles.OWN}, settings.max_style)
    for name, tensor in buffers.items():
        if name.endswith("running_var") and bool((tensor < 0).any()):
            raise MessageError(f'"{name}" has a negative variance')
    return _reined_in(update, task, settings)


def check_moments(moments: Moments, task: StatisticsTask, settings: GuardSettings) -> Moments:
    """Check measured moments: of the right layers, finite, and possible."""
    if moments.device != task.device:
        raise MessageError(f"the moments are of {moments.device}, expected {task.device}")
    _check_samples(moments.num_samples, settings)
    _check_cost(moments.cost, task.model.submodel.graph, moments.num_samples)
    variances: State = {}
    if [variance_of(name) for name in moments.means] != list(moments.second):
        raise MessageError("means and second moments are not of the same layers")
    for name, mean in moments.means.items():
        second = moments.second[variance_of(name)]
        if name not in task.model.submodel.shapes:
            raise MessageError(f'the net has no running mean "{name}"')
        task.model.submodel.check_shape(name, mean)
        task.model.submodel.check_shape(variance_of(name), second)
        variances[variance_of(name)] = second - mean.square() + MOMENT_SLACK * second.abs()
    _check_finite(moments.means | moments.second)
    _check_size(moments.means | variances, settings.max_statistic)
    for name, variance in variances.items():
        if bool((variance < 0).any()):
            raise MessageError(f'"{name}" has a negative variance')
    return moments


def knowing_pictures(
    settings: GuardSettings, mean: Sequence[float], std: Sequence[float]
) -> GuardSettings:
    """Return settings that believe no style which pictures of bytes, so normalised, cannot have.

    All devices train in the styles of all. One that is far off would spoil honest updates, and
    their devices be put aside.

    Args:
        settings: What is believed of any pictures.
        mean: What is taken from each channel once bytes are within 0 and 1.
        std: What it is divided by then.
    """
    most = max(max(abs(m), abs(1 - m)) / s for m, s in zip(mean, std, strict=True))
    return replace(settings, max_style=min(settings.max_style, most * (1 + STYLE_SLACK)))


def check_rounding(rounding: Rounding) -> Rounding:
    """Check what a device says that 16 bits have lost of its numbers: all of them at most."""
    worst, share = rounding.max_abs_error, rounding.relative_error
    if not (worst >= 0 and isfinite(worst) and 0 <= share <= 1):
        raise MessageError(f"a rounding of {worst:g}, {share:g} of all, is claimed")
    return rounding


def check_same_samples(count: int, device: Device) -> int:
    """Check a number of samples that the server knows: more of them would weigh more."""
    if count != device.num_samples:
        raise MessageError(f"{count} samples are claimed, the device has {device.num_samples}")
    return count


def expected_shared(trade: Trade, task: Assignment, batch: Batch) -> State:
    """Return what an honest client would send beside its weights, for names, shapes and formats.

    The method's own report is asked, with one made-up batch; so no method is known here by name.
    """
    work = Work(task.round_num, task.device, task.model, task.epochs, task.shared)
    local = PlainNet(trade, work, trade.method.own(work))
    return reported(trade.method, local.net, local.work, iter([batch]), iter([batch])).shared


# --- the client's ---


def check_task(task: Task, own: Device, earliest: int, settings: GuardSettings) -> Task:
    """Check what a client is asked to do.

    Args:
        task: What came; that it fits the client's own net has been seen to.
        own: Who the client is.
        earliest: The earliest round of this run that it works in. A round may come again: a
            server that was killed repeats the one it was in.
        settings: What is believed.
    """
    if (task.device.id, task.device.rho) != (own.id, own.rho):
        raise MessageError(f"the task is for {task.device}, this is {own}")
    if task.round_num < max(earliest, 1):
        raise MessageError(f"round {task.round_num} is over; from round {earliest} on I answer")
    _check_finite(task.model.weights)
    if isinstance(task, Assignment):
        _check_finite(task.shared)
        if not 1 <= task.epochs <= settings.max_epochs:
            raise MessageError(
                f"{task.epochs} epochs are asked for, expected 1 to {settings.max_epochs}"
            )
    return task


# --- parts ---


def _check_samples(count: int, settings: GuardSettings) -> None:
    if not 1 <= count <= settings.max_samples:
        raise MessageError(f"{count} samples are claimed, expected 1 to {settings.max_samples}")


def _check_metrics(metrics: Mapping[str, float], settings: GuardSettings) -> None:
    if "loss" not in metrics:
        raise MessageError('the update does not say its "loss"')
    for name, value in metrics.items():
        if not abs(value) <= LARGEST_METRIC:
            raise MessageError(f'the metric "{name}" is {value}')
    tested, correct = metrics.get("tested", 0), metrics.get("correct", 0)
    if not 0 <= correct <= tested <= settings.max_samples:
        raise MessageError(f"{correct:g} right answers of {tested:g} are claimed")


def _check_cost(spent: ClientCost, graph: ChannelGraph, passes: int) -> None:
    """Refuse what no client can have spent on so many pictures: it would spoil the run's bill."""
    whole = _whole(graph)
    flops = whole.train_flops + 2 * whole.macs
    most = ClientCost(
        parameters_trained=whole.parameters,
        parameters_uploaded=whole.parameters,
        peak_parameters=COST_SLACK * whole.parameters,
        train_flops=COST_SLACK * passes * flops,
    )
    for name in ("parameters_trained", "parameters_uploaded", "peak_parameters", "train_flops"):
        if (claimed := getattr(spent, name)) > getattr(most, name):
            raise MessageError(f"{name} = {claimed:.3g} is claimed, more than can be")


@lru_cache(maxsize=8)  # a run has one graph
def _whole(graph: ChannelGraph) -> Cost:
    return cost(graph.full())


def _check_model(model: LocalModel, sent: LocalModel) -> None:
    """Refuse a model that cannot have been made of the one sent."""
    if bool((model.submodel.flags & ~sent.submodel.flags).any()):
        raise MessageError("the update keeps channels that the client was not sent")
    expected = model.submodel.shapes
    if model.weights.keys() != expected.keys():
        raise MessageError("the update does not have the tensors of the net")
    for name, tensor in model.weights.items():
        model.submodel.check_shape(name, tensor)
        if tensor.dtype != sent.weights[name].dtype:
            raise MessageError(f'"{name}" is {tensor.dtype}, expected {sent.weights[name].dtype}')
    _check_finite(model.weights)


def _check_alike(state: State, like: State, place: str) -> None:
    """Refuse a state that does not have the names, shapes and number formats of another."""
    if state.keys() != like.keys():
        raise MessageError(f"{place}tensors are {sorted(state)}, expected {sorted(like)}")
    for name, tensor in state.items():
        if (tensor.shape, tensor.dtype) != (like[name].shape, like[name].dtype):
            raise MessageError(
                f'{place}"{name}" is {tensor.dtype} of shape {tuple(tensor.shape)}, '
                f"expected {like[name].dtype} of shape {tuple(like[name].shape)}"
            )


def _check_echo(state: State, sent: State) -> None:
    """Refuse whole numbers that were to come back as they went, such as a level."""
    for name, tensor in state.items():
        whole = name in sent and not tensor.is_floating_point()
        if whole and not bool((tensor == sent[name].to(tensor.device)).all()):
            raise MessageError(f'shared "{name}" came back changed')


def _check_finite(state: State) -> None:
    for name, tensor in state.items():
        if not bool(tensor.isfinite().all()):
            raise MessageError(f'"{name}" is not finite')


def _check_size(state: State, most: float) -> None:
    """Refuse numbers that are not finite or larger than anything honest."""
    for name, tensor in state.items():
        if tensor.is_floating_point() and not bool((tensor.abs() <= most).all()):
            raise MessageError(f'"{name}" is not finite, or has a number beyond {most:g}')


def _buffers(model: LocalModel) -> State:
    parameters = set(model.submodel.graph.named)
    return {name: tensor for name, tensor in model.weights.items() if name not in parameters}


def _reined_in(update: ClientUpdate, task: Assignment, settings: GuardSettings) -> ClientUpdate:
    """Refuse an update that drifted absurdly far; cut back one that drifted too far."""
    moved = drift(task.model, update.model)
    if not moved <= settings.max_drift:
        raise MessageError(
            f"the update is {moved:.3g} norms away from the model that was sent, "
            f"at most {settings.max_drift:g} are believed"
        )
    if settings.clip is None or moved <= settings.clip:
        return update
    return replace(update, model=nearer(task.model, update.model, settings.clip / moved))
