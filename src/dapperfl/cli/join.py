"""`dapperfl join`: be one of the devices of a run."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dapperfl.cli.border import say
from dapperfl.cli.deploy import Insecure, flower, require_file
from dapperfl.errors import ConfigError

if TYPE_CHECKING:
    from dapperfl.flower.joining import Member

_DOMAIN, _ASIDE = "own", 0.2  # of a device with pictures of its own, unless told otherwise
_LARGEST = 2**63 - 1  # number that a server takes

Address = Annotated[str, typer.Argument(metavar="HOST:PORT", help="Where the server is.")]
Data = Annotated[
    Path | None, typer.Option(metavar="DIR", help="This device's pictures: DIR/CLASS/*.png.")
]
Partition = Annotated[
    bool, typer.Option("--partition", help="Instead: its part of the server's benchmark.")
]
Root = Annotated[
    Path | None, typer.Option(metavar="DIR", help="With --partition: where benchmarks lie.")
]
Index = Annotated[
    int | None,
    typer.Option("--id", min=0, help="Its number; by default the one its key's name ends in."),
]
Rho = Annotated[
    float | None,
    typer.Option(
        metavar="0..1", help="The share of parameters it does without; 0, or the part's own."
    ),
]
Domain = Annotated[str, typer.Option(help="What kind of pictures these are.")]
KeepAside = Annotated[float, typer.Option(help="The share of its pictures that it tests with.")]
Certificate = Annotated[
    Path | None, typer.Option(metavar="ca.crt", help="What the server is known by.")
]
Key = Annotated[Path | None, typer.Option(metavar="FILE", help="The private key of this device.")]
Modules = Annotated[
    str, typer.Option(metavar="A,B", help="Modules whose code the server's config may name.")
]
StateFolder = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="What it remembers; by default runs/device-ID."),
]


def join(
    address: Address,
    *,
    data: Data = None,
    partition: Partition = False,
    root: Root = None,
    index: Index = None,
    rho: Rho = None,
    domain: Domain = _DOMAIN,
    keep_aside: KeepAside = _ASIDE,
    certificate: Certificate = None,
    key: Key = None,
    insecure: Insecure = False,
    modules: Modules = "",
    state: StateFolder = None,
) -> None:
    """Be a device: train for a server whenever it asks, until interrupted.

    dapperfl join fl.example.org:8443 --data pictures --certificate ca.crt --key device-0
    dapperfl join fl.example.org:8443 --partition --certificate ca.crt --key device-1

    The pictures stay here; weights, counts and losses are sent. The device waits
    for a server that is not there, and joins again when it comes back.
    """
    with flower("interrupted; the same command joins again"):
        from dapperfl.flower.joining import join as joined

        if (data is None) != partition:
            raise ConfigError("give --data DIR, or --partition for a part of the benchmark")
        source = _source(data, root, domain, keep_aside)
        number = _number(index, key)
        home = (state or Path("runs") / f"device-{number}").absolute()
        settings = {"device-id": number, "state": str(home), **source, **_level(rho, data)}
        settings |= {"modules": modules} if modules else {}
        _require_text(settings)
        for line in joined(_member(address, home, settings, certificate, key, insecure)):
            say(line)


def _source(
    data: Path | None, root: Path | None, domain: str, keep_aside: float
) -> dict[str, str | float]:
    from dapperfl.flower.joining import check_domain

    if data is None:
        if (domain, keep_aside) != (_DOMAIN, _ASIDE):
            raise ConfigError(
                "--domain and --keep-aside go with --data; a part of the benchmark has a domain, "
                "and what it keeps aside is data.validation of the server"
            )
        return {} if root is None else {"root": str(_require_folder(root))}
    if root is not None:
        raise ConfigError("--root goes with --partition; the pictures of this device are in --data")
    if not 0 <= keep_aside < 1:
        raise ConfigError(f"--keep-aside {keep_aside}: expected a share, at least 0 and below 1")
    check_domain(domain)
    return {"data": str(_require_folder(data)), "domain": domain, "keep-aside": keep_aside}


def _level(rho: float | None, data: Path | None) -> dict[str, float]:
    if rho is None:
        return {} if data is None else {"rho": 0.0}
    if not 0 <= rho < 1:
        raise ConfigError(f"--rho {rho:g}: expected a share that is at least 0 and below 1")
    return {"rho": rho}


def _number(index: int | None, key: Path | None) -> int:
    ending = re.search(r"(\d+)$", key.stem) if key is not None else None
    if index is None and ending is None:
        raise ConfigError("give the device's number with --id")
    number = int(ending[1]) if index is None and ending else int(index or 0)
    if number > _LARGEST:
        raise ConfigError(f"{number} is too large for a device's number; give another with --id")
    return number


def _member(
    address: str,
    state: Path,
    settings: dict[str, str | int | float],
    certificate: Path | None,
    key: Path | None,
    insecure: bool,
) -> "Member":
    from dapperfl.flower.address import parse_address
    from dapperfl.flower.certificates import check_private_key
    from dapperfl.flower.joining import Member

    server = parse_address(address)
    if insecure and (certificate is not None or key is not None):
        raise ConfigError("--insecure goes without --certificate and --key")
    if not insecure and certificate is None:
        raise ConfigError(
            "give the server's ca.crt with --certificate and this device's key with --key, or say "
            "--insecure: then nothing is encrypted"
        )
    for path in (certificate, key):
        if path is not None:
            require_file(path, "the one who runs the server makes it with dapperfl certs")
    if key is not None:
        check_private_key(key)
    return Member(server, state, settings, certificate, key)


def _require_folder(path: Path) -> Path:
    if not path.is_dir():
        raise ConfigError(f"there is no folder {path}")
    return path.absolute()


def _require_text(settings: dict[str, str | int | float]) -> None:
    """Refuse paths that no file of settings can hold."""
    for value in settings.values():
        try:
            str(value).encode()
        except UnicodeEncodeError as error:
            shown = str(value).encode(errors="backslashreplace").decode()
            raise ConfigError(f"{shown} is not UTF-8; rename it, or use a link to it") from error
