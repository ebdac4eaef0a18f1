"""What `dapperfl local-fleet` does: a server and its devices on this machine, for a try-out."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from dapperfl.core.messages import Device
from dapperfl.errors import ConfigError
from dapperfl.flower.address import Address
from dapperfl.flower.certificates import Certificates, make_certificates
from dapperfl.flower.joining import Member, started
from dapperfl.flower.kit import modules_of
from dapperfl.flower.place import Place
from dapperfl.flower.processes import free_port
from dapperfl.flower.serving import Door, serve
from dapperfl.lab.build import load_federation
from dapperfl.lab.config import Config
from dapperfl.lab.continuing import may_write
from dapperfl.lab.folder import RunFolder
from dapperfl.lab.records import RoundLine

_HERE = "127.0.0.1"


def local_fleet(
    config: Config, out: Path, *, resume: bool, secure: bool
) -> Iterator[str | RoundLine]:
    """Serve a run on the loopback, to a device for each part of the benchmark.

    Raises:
        ConfigError: devices would need pictures of their own; and what `serve` raises.
    """
    if config.deploy.devices_bring_pictures:
        raise ConfigError(
            "deploy.classes and deploy.own_folders are for devices that bring pictures, and those "
            "of local-fleet have none; use dapperfl serve, and dapperfl join --data"
        )
    may_write(RunFolder(out), resume)  # before certificates are put there
    devices = load_federation(config).devices
    door = _door(out, len(devices), secure)
    with ExitStack() as stack:
        for news in serve(config, out, door, resume=resume):
            yield news
            if devices:  # the server is up: its first word
                for device in devices:
                    stack.enter_context(started(_member(device, config, out, door)))
                devices = ()


def _door(out: Path, devices: int, secure: bool) -> Door:
    address = Address(_HERE, free_port(_HERE))
    if not secure:
        return Door(address)
    files = Certificates(Place(out.absolute()).folder / "certs")
    if not files.authority.exists():
        make_certificates(files.folder, [_HERE], devices)
    return Door(address, files, files.devices)


def _member(device: Device, config: Config, out: Path, door: Door) -> Member:
    state = Place(out.absolute()).folder / f"device-{device.id}"
    settings: dict[str, str | int | float] = {
        "device-id": device.id,
        "rho": device.rho,
        "state": str(state),
    }
    # Whoever starts them all has written the config, too.
    if modules := modules_of(config):
        settings["modules"] = ",".join(modules)
    if config.data.root is not None:
        settings["root"] = str(Path(config.data.root).expanduser().absolute())
    files = door.certificates
    return Member(
        door.address,
        state,
        settings,
        certificate=door.authority,
        key=None if files is None else files.device_key(device.id),
    )
