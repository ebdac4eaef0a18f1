"""What a slot knows of the steps it has seen: their recordings, and what those read."""

from dataclasses import dataclass, field, replace
from typing import Any

from dapperfl.core.messages import LocalModel, Work
from dapperfl.core.net import Batch
from dapperfl.core.state import State, overwrite
from dapperfl.sim.capture import Replay, tensors_of


@dataclass
class Step:
    """What is known about steps of one batch shape."""

    inputs: Batch  # in their fixed place
    reads: frozenset[str]  # which parts of the work
    play: Replay | None = None
    refused: bool = False


@dataclass
class Recordings:
    """The steps seen with works of one signature, and copies of what they read."""

    own: State  # trained by the steps themselves, where it is
    steps: dict[tuple[Any, ...], Step] = field(default_factory=dict)
    parts: dict[str, State] = field(default_factory=dict)

    def _given(self, work: Work, part: str) -> State:
        own = self.own if part == "memory" else {}
        return {name: t for name, t in tensors_of(work, part).items() if name not in own}

    def refresh(self, work: Work) -> None:
        """Copy a client's tensors to where recorded steps read them."""
        for part, state in self.parts.items():
            overwrite(state, self._given(work, part))

    def static(self, work: Work, reads: frozenset[str]) -> Work:
        """Return the work as recorded steps see it, with a fixed place for all they read."""
        for part in reads - self.parts.keys():
            given = self._given(work, part)
            self.parts[part] = {name: tensor.detach().clone() for name, tensor in given.items()}
        return replace(
            work,
            model=LocalModel(self.parts.get("model", {}), work.model.submodel),
            shared=self.parts.get("shared", {}),
            memory={**self.parts.get("memory", {}), **self.own},
        )
