"""What the devices of a fleet hold, made ready for a round."""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import torch

from dapperfl.data.batches import Batches
from dapperfl.data.benchmark import Examples, Federation
from dapperfl.errors import ConfigError


@dataclass
class Holdings(Mapping[int, Batches]):
    """Every device's batches by device id; only those asked for last are held.

    A fleet may be far larger than what takes part in a round, and batches hold more than the
    pictures themselves: padded copies, on a GPU even all of them.
    """

    examples: Mapping[int, Examples]
    prepare: Callable[[Examples], Batches]
    most: int  # devices whose batches are held
    held: OrderedDict[int, Batches] = field(default_factory=OrderedDict)

    def __getitem__(self, device: int) -> Batches:
        if device not in self.held:
            self.held[device] = self.prepare(self.examples[device])
            if len(self.held) > self.most:
                self.held.popitem(last=False)
        self.held.move_to_end(device)
        return self.held[device]

    def __iter__(self) -> Iterator[int]:
        return iter(self.examples)

    def __len__(self) -> int:
        return len(self.examples)

    def __contains__(self, device: object) -> bool:
        return device in self.examples  # the inherited way would prepare it


def kept_aside(federation: Federation) -> dict[str, Examples]:
    """Put what no device trains on together by domain: kept by devices, or held by nobody."""
    parts = {name: [examples] for name, examples in federation.reserve.items() if len(examples)}
    for device in federation.devices:
        examples = federation.validation.get(device.id)
        if examples is not None and len(examples):
            parts.setdefault(device.domain, []).append(examples)
    return {
        domain: Examples(
            torch.cat([part.images for part in found]), torch.cat([part.labels for part in found])
        )
        for domain, found in parts.items()
    }


def blinded(federation: Federation) -> Federation:
    """Return the federation with what is kept aside in the place of the test sets.

    Whatever is evaluated afterwards, in a round or at the end, is evaluated on that.
    """
    aside = kept_aside(federation)
    if not aside:
        raise ConfigError(
            "no device keeps anything aside to judge by; raise data.validation, or give the "
            "devices more pictures"
        )
    return replace(federation, test=aside, validation={}, reserve={})
