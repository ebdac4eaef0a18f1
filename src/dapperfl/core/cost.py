"""What a submodel costs, and which submodel a budget buys.

rho is the share of *parameters* removed, the paper's own definition (the share of zeros in M).
Keeping a share k of all channels would keep about k² of the parameters, so channel counts come
from here and from nowhere else.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import floor, lcm, prod
from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor

from dapperfl.core.submodel import Submodel
from dapperfl.errors import BudgetError

if TYPE_CHECKING:
    from dapperfl.core.channels import ChannelGraph, Group, Scope
    from dapperfl.core.tracing import Arithmetic


@dataclass(frozen=True)
class Cost:
    """The price of a submodel; MACs and FLOPs are for one sample."""

    parameters: int
    macs: int  # the paper's "FLOPs": multiplications forward, and two per norm entry
    train_flops: int  # forward and backward without norms, 2 per MAC
    upload_bytes: int  # its state, and one bit per channel to say which are kept


@lru_cache(maxsize=64)  # a client asks after every epoch
def cost(submodel: Submodel) -> Cost:
    """Count what a submodel costs to hold, to run, to train and to send."""
    graph, shapes = submodel.graph, submodel.shapes
    entries = {name: prod(shape) for name, shape in shapes.items()}
    macs = sum(product.macs for product in graph.products)
    train_flops = sum(product.flops for product in graph.products)
    for layer in graph.arithmetic:
        work = layer.positions * (entries[layer.weight] if layer.weight else 1)
        for axis in layer.along:
            work = work * int(submodel.flags[axis].sum()) // len(axis)
        macs += 2 * work if layer.norm else work
        if not layer.norm:  # forward, and gradients of the weight and the input if wanted
            train_flops += 2 * work * (1 + layer.learnt + (not layer.first))
    channels = sum(group.size for group in graph.groups)
    return Cost(
        parameters=sum(entries[name] for name in graph.parameters),
        macs=macs,
        train_flops=train_flops,
        upload_bytes=sum(n * graph.sizes[name] for name, n in entries.items())
        + (channels + 7) // 8,
    )


@lru_cache(maxsize=64)  # it depends on the level alone, and is asked for every device and round
def keep_for_budget(
    graph: "ChannelGraph", rho: float, *, scope: "Scope", multiple: int = 8
) -> Mapping["Group", int]:
    """Choose how many channels each group keeps so that a share rho of the parameters goes.

    One keep ratio for all groups, floored to the multiple; then groups are raised one multiple at
    a time while the budget holds: the thinnest first as long as a share rho of the MACs goes as
    well, then those that cost the fewest MACs. The multiple halves until the budget can be met, and
    further while steps of its size leave much of the budget unspent, as in narrow nets.

    Raises:
        BudgetError: If even one channel (or bundle, or what a group must keep) per group is too
            much; it names the smallest share that can be reached.
    """
    if not 0 <= rho < 1:
        raise BudgetError(f"rho must be at least 0 and below 1, not {rho}")
    if multiple < 1:
        raise BudgetError(f"multiple must be at least 1, not {multiple}")
    if rho == 0:
        return {group: group.size for group in graph.in_scope(scope)}
    sizes = _Sizes(graph)
    dense_parameters, dense_macs = sizes.of({})
    budget = (1 - rho) * dense_parameters + 1e-6
    if scope == "auto" and sizes.of(_steps(graph, scope, 1))[0] > budget:
        scope = "all"  # narrow streams go as well, rather than the device
    steps = _steps(graph, scope, multiple)
    while (smallest := sizes.of(steps)[0]) > budget:
        if multiple == 1:
            raise _unreachable(graph, rho, scope, smallest / dense_parameters)
        multiple //= 2
        steps = _steps(graph, scope, multiple)
    limits = budget, (1 - rho) * dense_macs
    counts = _spent(sizes, steps, limits)
    while multiple > 1 and sizes.of(counts)[0] < budget - _WASTE * dense_parameters:
        multiple //= 2
        finer = _spent(sizes, _steps(graph, scope, multiple), limits)
        counts = max(counts, finer, key=lambda each: sizes.of(each)[0])
    return counts


_SLACK = 0.02  # a share of the parameters that may be left unspent to keep the MACs low
_WASTE = 0.1  # one that may be left unspent to keep the multiple


def _spent(
    sizes: "_Sizes", steps: Mapping["Group", int], limits: tuple[float, float]
) -> dict["Group", int]:
    """Keep as many channels as parameters and MACs allow, then as the parameters do."""
    budget, slack = limits[0], _SLACK * sizes.of({})[0]
    counts = _raised(sizes, _uniform(sizes, steps, budget), steps, limits)
    while sizes.of(counts)[0] < budget - slack:
        more = _cheapest_raise(sizes, counts, steps, budget)
        if more is None:
            break
        counts = more
    return counts


def _steps(graph: "ChannelGraph", scope: "Scope", multiple: int) -> dict["Group", int]:
    """Return by how many channels each group can grow; also the fewest it can keep."""
    return {g: min(lcm(multiple, g.bundle * g.least), g.size) for g in graph.in_scope(scope)}


def _unreachable(graph: "ChannelGraph", rho: float, scope: "Scope", share: float) -> BudgetError:
    why = f"; what stays full: {graph.why_fixed()}" if graph.why_fixed() else ""
    if not graph.groups:
        return BudgetError(
            f"rho = {rho}, but no channel of this net can be cut; choose rho = 0{why}"
        )
    hint = ' or scope "all"' if len(graph.in_scope(scope)) < len(graph.groups) else ""
    return BudgetError(
        f"rho = {rho} leaves {1 - rho:.4f} of the parameters, but the smallest submodel with scope "
        f'"{scope}" has {share:.4f}; choose rho ≤ {floor((1 - share) * 1e4) / 1e4}{hint}{why}'
    )


_Axis = tuple[int, tuple["_Use", ...]]  # entries that are never cut, and those of groups


@dataclass(frozen=True)
class _Factors:
    """A size, such as a parameter's, as a product over axes that can be cut."""

    rest: int  # entries per kept channel combination
    axes: tuple[_Axis, ...]
    macs: float  # per entry
    is_parameter: bool = True


class _Use(NamedTuple):
    """The entries of a group on one axis, which may hold some members of each bundle only."""

    group: "Group"
    most: int  # entries that any one bundle has there
    entries: int  # of the whole group

    def at(self, count: int) -> int:
        """Return how many entries stay at most when so many channels do."""
        return min(count // self.group.bundle * self.most, self.entries)


class _Sizes:
    """Parameters and MACs as functions of how many channels each group keeps."""

    def __init__(self, graph: "ChannelGraph") -> None:
        macs: Counter[str] = Counter()
        self.factors = []
        for layer in graph.arithmetic:
            work = layer.positions * (2 if layer.norm else 1)
            if layer.weight in graph.parameters and not layer.along:
                macs[layer.weight] += work
            else:
                self.factors.append(_apart(graph, layer, work))
        self.factors += [_Factors(*_axes(graph, name), macs[name]) for name in graph.parameters]
        self.always: float = sum(product.macs for product in graph.products)

    def of(self, counts: Mapping["Group", int]) -> tuple[int, float]:
        """Return parameters and MACs; groups without a count stay full."""
        parameters, macs = 0, self.always
        for size in self.factors:
            entries = size.rest * prod(
                always + sum(use.at(counts.get(use.group, use.group.size)) for use in uses)
                for always, uses in size.axes
            )
            parameters += entries * size.is_parameter
            macs += entries * size.macs
        return parameters, macs


def _axes(graph: "ChannelGraph", name: str) -> tuple[int, tuple[_Axis, ...]]:
    """Return how many entries of a state tensor go with each channel, and its axes of channels."""
    cut = {axis: ids for axis, ids in enumerate(graph.axes[name]) if ids is not None}
    rest = prod(size for axis, size in enumerate(graph.shapes[name]) if axis not in cut)
    return rest, tuple(_axis(graph, ids) for ids in cut.values())


def _apart(graph: "ChannelGraph", layer: "Arithmetic", work: int) -> _Factors:
    """Return the MACs of a layer that do not follow the size of a parameter."""
    rest, axes = _axes(graph, layer.weight) if layer.weight else (1, ())
    along = tuple(_axis(graph, ids) for ids in layer.along)
    share = work / prod(len(ids) for ids in layer.along)
    return _Factors(rest, axes + along, share, is_parameter=False)


def _axis(graph: "ChannelGraph", ids: Tensor) -> _Axis:
    return int((ids < 0).sum()), _uses(graph, ids)


def _uses(graph: "ChannelGraph", ids: Tensor) -> tuple[_Use, ...]:
    """Return the groups on an axis, and how many entries they have there."""
    uses = []
    for group in graph.groups:
        inside = ids[(ids >= group.offset) & (ids < group.offset + group.size)] - group.offset
        if len(inside):
            times = inside.bincount(minlength=group.size)
            most = int(times[graph.bundles[group]].sum(1).max())
            uses.append(_Use(group, most, len(inside)))
    return tuple(uses)


def _uniform(sizes: _Sizes, steps: Mapping["Group", int], budget: float) -> dict["Group", int]:
    """Return the counts of the largest common keep ratio within the budget."""

    def at(ratio: float) -> dict["Group", int]:
        return {
            group: max(step, floor(ratio * group.size / step + 1e-9) * step)
            for group, step in steps.items()
        }

    ratios = sorted({k * s / g.size for g, s in steps.items() for k in range(1, g.size // s + 1)})
    fitting = bisect_left(ratios, True, key=lambda ratio: sizes.of(at(ratio))[0] > budget)
    return at(ratios[fitting - 1]) if fitting else dict(steps)


def _raised(
    sizes: _Sizes,
    counts: dict["Group", int],
    steps: Mapping["Group", int],
    limits: tuple[float, float],
) -> dict["Group", int]:
    """Spend what is left of parameters and MACs, one multiple of the thinnest group at a time."""
    candidates = list(counts)
    while candidates:
        group = min(candidates, key=lambda g: counts[g] / g.size)
        more = _raise(counts, group, steps)
        fits = all(size <= limit for size, limit in zip(sizes.of(more), limits, strict=True))
        if fits and more != counts:
            counts = more
        else:
            candidates.remove(group)
    return counts


def _raise(
    counts: Mapping["Group", int], group: "Group", steps: Mapping["Group", int]
) -> dict["Group", int]:
    """Return the counts with one group a multiple larger."""
    return {**counts, group: min(counts[group] + steps[group], group.size)}


def _cheapest_raise(
    sizes: _Sizes, counts: dict["Group", int], steps: Mapping["Group", int], budget: float
) -> dict["Group", int] | None:
    """Return the counts after the raise that costs the fewest MACs; None if none fits."""
    raises = [_raise(counts, group, steps) for group in counts if counts[group] < group.size]
    fitting = [more for more in raises if sizes.of(more)[0] <= budget]
    return min(fitting, key=lambda more: sizes.of(more)[1]) if fitting else None
