"""From ties between single channels to families: channels that one decision can cut."""

from collections.abc import Mapping
from dataclasses import dataclass

from dapperfl.core.shadows import Ties
from dapperfl.core.tracing import Trace


@dataclass(frozen=True)
class Family:
    """The channels of layers that are connected, and how they can be cut."""

    name: str  # of the layer that first writes them
    stream: bool  # an elementwise add of two producers ties them
    positions: Mapping[int, int]  # channel number -> place; only of channels that may go
    bundles: tuple[tuple[int, ...], ...]  # places that stay or go together
    reason: str  # why none may go; empty if some may


@dataclass
class _Part:
    """Channels of a family that stay or go together."""

    channels: list[int]
    reason: str = ""  # why they always stay


def families(trace: Trace) -> list[Family]:
    """Gather channels connected through a weight, a tie or a bundle, in order of appearance."""
    together = Ties(len(trace.ties))  # one fate: the same channel, or one bundle
    for channel in range(len(together)):
        together.unite(channel, trace.ties.root(channel))
        together.unite(channel, trace.bundles.root(channel))
    kin = Ties(len(together))
    for producer in trace.producers:
        for channel in producer.channels():
            kin.unite(producer.start, channel)
            kin.unite(channel, together.root(channel))
    parts: dict[int, dict[int, _Part]] = {}
    for channel in range(len(kin)):
        family = parts.setdefault(kin.root(channel), {})
        part = family.setdefault(together.root(channel), _Part([]))
        part.channels.append(channel)
        part.reason = part.reason or trace.pinned.get(channel, "")
    names = {kin.root(p.start): p.name for p in reversed(trace.producers)}
    for producer in trace.producers:
        own = {together.root(channel) for channel in producer.channels()}
        _anchor(producer.name, parts[kin.root(producer.start)], own)
    return [_family(trace, names[root], list(of.values())) for root, of in parts.items()]


def _anchor(name: str, parts: Mapping[int, _Part], own: set[int]) -> None:
    """Keep a part of a layer that is in some parts of its family only, lest it lose them all."""
    free = {root for root, part in parts.items() if not part.reason}
    if own < free:  # a layer that is in all of them cannot lose all: a group is never empty
        parts[min(own)].reason = f"the last channels of {name}"


def _family(trace: Trace, name: str, parts: list[_Part]) -> Family:
    """Number the channels of a family that may go, or say why none may."""
    stream = any(channel in trace.streams for part in parts for channel in part.channels)
    free = [part for part in parts if not part.reason]
    reason = ""
    if not free:
        reason = parts[0].reason
    elif len(free) == 1:
        reason = "all of its channels stay or go together"
    roots = [sorted({trace.ties.root(channel) for channel in part.channels}) for part in free]
    if len({len(part) for part in roots}) > 1:
        reason = "its bundles differ in size"
    if reason:
        return Family(name, stream, {}, (), reason)
    place = {root: i for i, root in enumerate(sorted(root for part in roots for root in part))}
    positions = {c: place[trace.ties.root(c)] for part in free for c in part.channels}
    bundles = tuple(tuple(place[root] for root in part) for part in roots)
    return Family(name, stream, positions, bundles, "")
