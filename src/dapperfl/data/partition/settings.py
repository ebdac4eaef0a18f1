"""What can be asked of a partition: the part of the [data] table that is about devices."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from dapperfl.errors import ConfigError
from dapperfl.settings import Range, check_settings, setting

ProtocolName = Literal["paper", "fair", "dirichlet", "iid"]

# What only some protocols look at; a value that nothing looks at would be a silent mistake.
_ONLY: Mapping[str, tuple[ProtocolName, ...]] = {
    "allocation": ("paper", "fair", "dirichlet"),
    "alpha": ("dirichlet",),
}


@dataclass(frozen=True, kw_only=True)
class PartitionSettings:
    """How pictures are spread over the devices."""

    protocol: ProtocolName = setting("fair", "how domains and samples are given to the devices")
    fraction: float | None = setting(
        None,
        'share of a domain that one device holds; "none": the benchmark\'s own',
        Range(above=0, at_most=1),
    )
    allocation: Mapping[str, int] | None = setting(
        None, 'devices of each domain, by hand; "none": drawn, at least one each'
    )
    alpha: float | None = setting(
        None,
        'dirichlet only: the smaller, the fewer classes a device has; "none": 0.5',
        Range(above=0),
    )
    held_out: str | None = setting(None, "a domain that no device has, only the test")
    validation: float = setting(
        0.0, "share of its pictures that each device keeps aside", Range(0, below=1)
    )
    reserve: int = setting(
        0,
        "training pictures of each domain that no device gets, to choose between methods by; of a "
        "small domain a quarter at most",
        Range(0),
    )
    blind: bool = setting(
        False,
        "evaluate on what the two keys above keep aside, and never on test pictures: to choose by, "
        "and faster where tests are large",
    )

    def __post_init__(self) -> None:
        """Refuse what is out of range, and what the protocol would not look at."""
        check_settings(self, "data.")
        if self.blind and not (self.validation or self.reserve):
            raise ConfigError(
                "data.blind = true, but nothing is kept aside to evaluate on; set data.reserve (of "
                "each domain) or data.validation (of each device)"
            )
        for name, users in _ONLY.items():
            if getattr(self, name) is not None and self.protocol not in users:
                quoted = ", ".join(f'"{user}"' for user in users)
                word = "protocol" if len(users) == 1 else "protocols"
                raise ConfigError(
                    f"data.{name} is only used by {word} {quoted}, but data.protocol is "
                    f'"{self.protocol}"; choose another protocol, or leave data.{name} out'
                )
        if self.allocation == {}:
            raise ConfigError("data.allocation is empty: name a domain, or leave it out")
        for domain, count in (self.allocation or {}).items():
            if count < 0:
                raise ConfigError(f"data.allocation.{domain} = {count}: expected at least 0")
