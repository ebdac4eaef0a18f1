"""The `[deploy]` table: what matters only where devices are real. Simulation never reads it."""

from dataclasses import dataclass, field

from dapperfl.errors import ConfigError
from dapperfl.runtime.guard import GuardSettings
from dapperfl.settings import Range, check_settings, setting

MOST_PIXELS = 4096  # of a side of a picture: no device agrees to more


@dataclass(frozen=True)
class DeployConfig:
    """How a server waits for real devices, and what it believes of them."""

    deadline: float = setting(600.0, "seconds that a phase of a round may last", Range(above=0))
    min_replies: int = setting(1, "with fewer replies the model of a round stays", Range(1))
    devices: int | None = setting(
        None,
        'devices that must have joined before the first round; "none": as many as fleet.devices',
        Range(1),
    )
    patience: float = setting(600.0, "seconds to wait for them", Range(above=0))
    fp16: bool = setting(False, "updates come up in 16 bits")
    own_folders: bool = setting(
        False, "devices bring their own pictures and say their own rho; classes says so too"
    )
    classes: tuple[str, ...] = setting(
        (), "names of the classes, if the server has no pictures; devices measure the accuracy then"
    )
    picture: tuple[int, ...] = setting(
        (3, 32, 32),
        "channels, height and width of a picture, used with classes",
        Range(1, at_most=MOST_PIXELS),
    )
    guard: GuardSettings = field(default_factory=GuardSettings)

    def __post_init__(self) -> None:
        """Refuse pictures and classes that no device could make of its files and folders."""
        check_settings(self, "deploy.")
        if len(self.picture) != 3 or self.picture[0] != 3 or self.picture[1] != self.picture[2]:
            raise ConfigError(
                f"deploy.picture = {list(self.picture)}: expected 3 channels and a square, such as "
                "[3, 32, 32]"
            )
        if len(set(self.classes)) != len(self.classes):
            raise ConfigError(f"deploy.classes = {list(self.classes)}: a name stands there twice")
        for name in self.classes:
            if not name or name.startswith(".") or "/" in name:
                raise ConfigError(f'deploy.classes: "{name}" cannot be the name of a folder')

    @property
    def devices_bring_pictures(self) -> bool:
        """Whether the fleet is made of whoever joins, each with a folder of its own."""
        return self.own_folders or bool(self.classes)
