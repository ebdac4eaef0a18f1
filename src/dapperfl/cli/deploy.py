"""`dapperfl certs`, `serve` and `local-fleet`: the server's side of training on real devices."""

import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dapperfl.cli.border import border, say, stop
from dapperfl.cli.options import ConfigFile, Settings, new_folder, run_config
from dapperfl.errors import ConfigError

if TYPE_CHECKING:
    from dapperfl.flower.serving import Door
    from dapperfl.lab.config import Config
    from dapperfl.lab.records import RoundLine

Out = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="The run folder; by default a new one in runs/."),
]
Resume = Annotated[bool, typer.Option("--resume", help="Continue the run in --out.")]
Insecure = Annotated[
    bool, typer.Option("--insecure", help="No encryption, and any device may join. For try-outs.")
]

_DEVICES = "fleet.devices"
_TRY_OUT = 4  # devices of a fleet that nobody described


def certs(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where to; nothing is replaced.")],
    host: Annotated[
        list[str],
        typer.Option(metavar="NAME", help="A name or address of the server; repeatable."),
    ],
    devices: Annotated[int, typer.Option(metavar="N", min=1, help="How many keys to make.")],
) -> None:
    """Make an authority, the server's certificate and a key for each device.

    dapperfl certs certs --host fl.example.org --host 192.0.2.7 --devices 3

    Private keys are readable by their owner alone. Give each device ca.crt and
    its own key; ca.key is needed by nobody any more.
    """
    with flower():
        from dapperfl.flower.certificates import make_certificates

        files = make_certificates(folder, host, devices)
        typer.echo(f"authority:   {files.authority} (for the devices)")
        typer.echo(f"server:      {files.server}, {files.server_key}")
        typer.echo(f"device keys: {files.device_key(0)} to {files.device_key(devices - 1)}")


def serve(
    config: ConfigFile = None,
    *,
    settings: Settings = None,
    out: Out = None,
    resume: Resume = False,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "0.0.0.0",
    port: Annotated[int, typer.Option(min=1, max=65535, help="The port to listen on.")] = 8443,
    certificates: Annotated[
        Path | None, typer.Option("--certs", metavar="DIR", help="What dapperfl certs has made.")
    ] = None,
    keys: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Public keys of the devices; by default CERTS/devices."),
    ] = None,
    insecure: Insecure = False,
) -> None:
    """Train with real devices, which come by `dapperfl join`.

    dapperfl serve run.toml --out runs/first --certs certs
    dapperfl serve --out runs/first --certs certs --resume

    The run folder is that of `dapperfl run`. A run that was interrupted or killed
    goes on in the round it was in.
    """
    with flower():
        from dapperfl.flower.serving import serve as served

        door = _door(host, port, certificates, keys, insecure)
        resolved = _config(config, settings or [], out, resume)
        _run(resolved, out, resume, lambda out: served(resolved, out, door, resume=resume))


def local_fleet(
    config: ConfigFile = None,
    *,
    devices: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, help=f"How many devices; as CONFIG says, else {_TRY_OUT}."
        ),
    ] = None,
    settings: Settings = None,
    out: Out = None,
    resume: Resume = False,
    secure: Annotated[
        bool, typer.Option("--secure", help="With TLS and keys, as between machines.")
    ] = False,
) -> None:
    """Start a server and its devices on this machine, for a try-out.

    dapperfl local-fleet --devices 4 --out runs/local

    All of them talk over the loopback; the benchmark is dealt out as in `dapperfl run`.
    """
    with flower():
        from dapperfl.flower.local_fleet import local_fleet as fleet

        if any(each.partition("=")[0].strip() == _DEVICES for each in settings or ()):
            raise ConfigError(f"--devices says how many there are; leave out --set {_DEVICES}")
        if devices is None and config is None and not resume:
            devices = _TRY_OUT
        number = [f"{_DEVICES}={devices}"] if devices is not None else []
        resolved = _config(config, [*(settings or ()), *number], out, resume)
        _run(resolved, out, resume, lambda out: fleet(resolved, out, resume=resume, secure=secure))


@contextmanager
def flower(interrupted: str = "interrupted; nothing was written") -> Iterator[None]:
    """Turn errors and signals into one line, also the want of Flower."""
    with border(interrupted=interrupted):
        from dapperfl.flower.processes import require_flower, terminable

        require_flower()
        with terminable():
            yield


def _config(config: Path | None, settings: list[str], out: Path | None, resume: bool) -> "Config":
    """Return the config of a run, also of one that ended while it waited for its devices."""
    from dapperfl.flower.place import Place

    if resume and out and config is None and not (out / "config.toml").exists():
        waited = Place(out).config
        config = waited if waited.exists() else None
    return run_config(config, settings, out, resume)


def _run(
    config: "Config",
    out: Path | None,
    resume: bool,
    start: "Callable[[Path], Iterator[str | RoundLine]]",
) -> None:
    """Show a run from its start to its results."""
    from dapperfl.lab.continuing import finished_summary

    folder = out or new_folder(config)
    if resume and finished_summary(config, folder) is not None:
        more = f"--resume --set rounds={config.rounds * 2}"
        typer.echo(f"{folder} is finished; for more rounds: {more}")
        return
    try:
        _show(start(folder), config, folder)
    except KeyboardInterrupt:
        again = f"--out {shlex.quote(str(folder))} --resume"
        stop(f"interrupted; continue with the same options and {again}", 130)


def _door(
    host: str, port: int, certificates: Path | None, keys: Path | None, insecure: bool
) -> "Door":
    from dapperfl.flower.address import Address, without_brackets
    from dapperfl.flower.certificates import Certificates
    from dapperfl.flower.serving import Door

    if insecure == (certificates is not None) or (insecure and keys is not None):
        raise ConfigError(
            "give --certs DIR (dapperfl certs makes it), or say --insecure: then nothing is "
            "encrypted and any device may join"
        )
    if not host.strip():
        raise ConfigError('--host "": expected an address of this machine; 0.0.0.0 means all')
    address = Address(without_brackets(host), port)
    if certificates is None:
        return Door(address)
    files = Certificates(certificates.absolute())
    for path in (files.authority, files.server, files.server_key):
        require_file(path, "make it with dapperfl certs")
    return Door(address, files, keys or files.devices)


def require_file(path: Path, advice: str) -> None:
    """Refuse to go on without a file."""
    if not path.is_file():
        raise ConfigError(f"there is no file {path}; {advice}")


def _show(news: "Iterator[str | RoundLine]", config: "Config", out: Path) -> None:
    """Print notes and rounds as they come, and the results at the end."""
    from rich.console import Console

    from dapperfl.lab.continuing import finished_summary
    from dapperfl.lab.display import Progress, results
    from dapperfl.lab.records import load_records

    # Names and paths are shown as they are, brackets included.
    console = Console(markup=False, emoji=False, highlight=False)
    progress = Progress(config.rounds, load_records(out))
    for item in news:
        if isinstance(item, str):
            say(item)
            continue
        progress.add(item)
        say(progress.plain(item))  # why somebody is missing, a note has said
    summary = finished_summary(config, out)
    if summary is None:
        stop(f"error: the run in {out} has ended without results", 1)
    console.print(results(summary))
    typer.echo(f"run folder: {out}")
    typer.echo(f"as a page:  dapperfl report {shlex.quote(str(out))}")
