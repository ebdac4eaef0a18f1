"""What a server knows of the pictures: a benchmark, test sets only, or nothing but class names.

With a benchmark the config says which devices there are, as in simulation. Where devices bring
their own folders, the fleet is who has joined when the run begins, and stays that.
"""

from collections.abc import Collection, Iterable
from dataclasses import replace

from dapperfl.core.messages import Device
from dapperfl.data.benchmark import Benchmark, Federation
from dapperfl.errors import ConfigError
from dapperfl.lab.build import load_benchmark, load_federation
from dapperfl.lab.config import Config, DataConfig, to_keys
from dapperfl.lab.fields import show
from dapperfl.lab.folder import RunFolder
from dapperfl.lab.records import read_devices

# What only matters where a benchmark is dealt out.
_DEALT = ("fleet.rhos", "data.protocol", "data.fraction", "data.allocation", "data.alpha")
# What the owners of pictures decide, and how.
_NOT_OURS = {
    "held_out": "let none join with that domain, and leave it out",
    "validation": "each says how many it keeps aside, dapperfl join --keep-aside; leave it out",
    "reserve": "the server has none to keep from them; leave it out",
}
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # as of any folder of pictures


def known_world(config: Config) -> Federation:
    """Return all that is known before any device has joined; maybe no devices at all.

    Raises:
        ConfigError: The config waits for devices that cannot be, or does not go with such a server.
    """
    deploy = config.deploy
    if not deploy.devices_bring_pictures:
        federation = load_federation(config)
        fleet = len(federation.devices)
        if deploy.devices is not None and deploy.devices > fleet:
            raise ConfigError(
                f"deploy.devices = {deploy.devices}, but the benchmark is dealt out to {fleet} "
                "devices; ask for fewer, or raise fleet.devices"
            )
        return federation
    _refuse_aside(config.data)
    if deploy.classes:
        if len(deploy.classes) < 2:
            raise ConfigError(f"deploy.classes = {list(deploy.classes)}: expected at least two")
        return Federation((), {}, {}, deploy.classes, MEAN, STD, picture=deploy.picture)
    return _tested_on(load_benchmark(config.data))


def _refuse_aside(data: DataConfig) -> None:
    """Refuse to keep pictures from devices that bring them, where results would say it was done."""
    if data.blind:
        raise ConfigError("data.blind = true: the server has no pictures that are kept aside")
    for name, advice in _NOT_OURS.items():
        if value := getattr(data, name):
            raise ConfigError(
                f"data.{name} = {show(value)}: devices bring their own pictures; {advice}"
            )


def without_effect(config: Config) -> list[str]:
    """Name the settings about dealing pictures out, if there are some and devices bring theirs."""
    if not config.deploy.devices_bring_pictures:
        return []
    start = Config()
    usual = to_keys(replace(start, data=DataConfig(benchmark=config.data.benchmark)))
    usual["data.benchmark"] = start.data.benchmark
    vain = ("fleet.rhos", "data.") if config.deploy.classes else _DEALT
    return [
        key
        for key, value in to_keys(config).items()
        if key.startswith(vain) and value != usual.get(key)
    ]


def _tested_on(benchmark: Benchmark) -> Federation:
    """Return the world of a server that has test pictures, and devices that bring the others.

    Raises:
        ConfigError: Pictures that devices read from files cannot look like those.
    """
    world = Federation(
        devices=(),
        train={},
        test={name: domain.test for name, domain in benchmark.domains.items()},
        classes=benchmark.classes,
        mean=benchmark.mean,
        std=benchmark.std,
        flip=benchmark.flip,
        pad=benchmark.pad,
    )
    if world.shape != (3, *world.shape[-1:] * 2):
        found = " × ".join(map(str, world.shape))
        raise ConfigError(
            "deploy.own_folders = true: devices read pictures of 3 channels and squash them to "
            f"squares, but those of {benchmark.name} are {found}; use a benchmark of such "
            "pictures, or deploy.classes and no test pictures"
        )
    return world


def settled(world: Federation, devices: Iterable[Device]) -> Federation:
    """Return the world with the fleet that a run has from now on."""
    return replace(world, devices=tuple(sorted(devices, key=lambda device: device.id)))


def planned(world: Federation, folder: RunFolder) -> tuple[Device, ...]:
    """Return the devices that are known before any has joined, from the config or the run so far.

    Raises:
        CheckpointError: The run was begun, and who took part cannot be read.
    """
    if world.devices or not folder.allocation.exists():
        return world.devices
    return read_devices(folder)


def wanted(config: Config, fleet: Collection[Device]) -> int:
    """Say how many devices must have joined before the first round, of a fleet that is planned."""
    return config.deploy.devices or len(fleet) or config.fleet.devices
