"""Certificates and keys of a deployment, so that nobody needs openssl and ssh-keygen.

An authority of one's own signs the server's certificate; devices are given its public half and so
know the server. The server is given the public key of every device and so knows them.
"""

import os
import ssl
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from dapperfl.errors import ConfigError
from dapperfl.flower.address import trusting

_DAYS = 825  # the longest that common clients accept of a server's certificate
_LABEL = 63  # letters of a part of a name, at most
_CLOCKS_DIFFER = timedelta(hours=1)
_HERE = ("localhost", "127.0.0.1", "::1")  # by which the server's own processes know it


@dataclass(frozen=True)
class Certificates:
    """The files that `dapperfl certs` writes into one folder."""

    folder: Path

    @property
    def authority(self) -> Path:
        """The certificate that devices check the server by."""
        return self.folder / "ca.crt"

    @property
    def authority_key(self) -> Path:
        """What signs certificates; nothing needs it after that."""
        return self.folder / "ca.key"

    @property
    def server(self) -> Path:
        """The server's certificate."""
        return self.folder / "server.crt"

    @property
    def server_key(self) -> Path:
        """The server's private key."""
        return self.folder / "server.key"

    @property
    def devices(self) -> Path:
        """The folder of the devices' keys; the server needs the public ones only."""
        return self.folder / "devices"

    def device_key(self, index: int) -> Path:
        """The private key of a device; the public one ends in `.pub`."""
        return self.devices / f"device-{index}"


def make_certificates(folder: Path, hosts: list[str], devices: int) -> Certificates:
    """Write an authority, the server's certificate and a key for each device.

    Args:
        folder: Where to; nothing in it is overwritten.
        hosts: The names and addresses under which devices will know the server.
        devices: How many keys to make.

    Raises:
        ConfigError: a file is there already, or a host is neither a name nor an address.
    """
    files = Certificates(folder)
    names = [_host(each) for each in dict.fromkeys([*hosts, *_HERE])]
    keys = [files.device_key(index) for index in range(devices)]
    _refuse_to_overwrite([files.authority, files.authority_key, files.server, files.server_key])
    _refuse_to_overwrite([path for key in keys for path in (key, key.with_suffix(".pub"))])
    files.devices.mkdir(parents=True, exist_ok=True)
    authority_key, authority = _authority()
    server_key, server = _server(names, authority_key, authority)
    _write_private(files.authority_key, _pem(authority_key))
    _write_new(files.authority, authority.public_bytes(serialization.Encoding.PEM))
    _write_private(files.server_key, _pem(server_key))
    _write_new(files.server, server.public_bytes(serialization.Encoding.PEM))
    for path in keys:
        _device_key(path)
    return files


def _refuse_to_overwrite(paths: list[Path]) -> None:
    for path in paths:
        if path.exists():
            raise ConfigError(
                f"{path} is there already and is not overwritten; choose another folder"
            )


def _host(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(text))
    except ValueError:
        pass
    parts = text.removesuffix(".").split(".")
    if not text.isascii() or not all(map(_is_label, parts)):
        raise ConfigError(f'--host "{text}": expected a name such as fl.example.org or an address')
    return x509.DNSName(text)


def _is_label(text: str) -> bool:
    return len(text) <= _LABEL and text.replace("-", "").isalnum()


def _authority() -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    key, name = _new_key(), _name("dapperfl authority")
    usage = x509.KeyUsage(
        key_cert_sign=True,
        crl_sign=True,
        digital_signature=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
    draft = (
        _draft(key, name, name)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
    )
    return key, draft.sign(key, hashes.SHA384())


def _server(
    names: list[x509.GeneralName],
    authority_key: ec.EllipticCurvePrivateKey,
    authority: x509.Certificate,
) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    key = _new_key()
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key())
    purpose = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
    draft = (
        _draft(key, _name("dapperfl server"), authority.subject)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(purpose, critical=False)
        .add_extension(issuer, critical=False)
    )
    return key, draft.sign(authority_key, hashes.SHA384())


def _draft(
    key: ec.EllipticCurvePrivateKey, name: x509.Name, issuer: x509.Name
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCKS_DIFFER)
        .not_valid_after(now + timedelta(days=_DAYS))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP384R1())


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _device_key(path: Path) -> None:
    """Write a pair of keys as `ssh-keygen -t ecdsa -b 384` does, which is what Flower reads."""
    key = _new_key()
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.OpenSSH,
        serialization.NoEncryption(),
    )
    public = key.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    _write_private(path, private)
    _write_new(path.with_suffix(".pub"), public + b"\n")


def _write_private(path: Path, data: bytes) -> None:
    _write_new(path, data, mode=0o600)


def _write_new(path: Path, data: bytes, mode: int = 0o644) -> None:
    """Write a file that must be new; nobody else can read a private one at any moment."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(handle, "wb") as file:
        file.write(data)


def check_server(files: Certificates) -> None:
    """Refuse files that no server can start with, or that no device would accept.

    Raises:
        ConfigError: One cannot be read, they do not belong together, or their time is over.
    """
    trusting(files.authority)
    try:
        # An empty password: one that is asked for would be waited for.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(
            files.server, files.server_key, password=""
        )
        server = x509.load_pem_x509_certificate(files.server.read_bytes())
    except (OSError, ValueError) as error:  # an SSLError is an OSError
        reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
        raise ConfigError(
            f"{files.server} and {files.server_key} cannot be used together: {reason}; "
            "make them with dapperfl certs"
        ) from error
    now = datetime.now(UTC)
    if not server.not_valid_before_utc <= now <= server.not_valid_after_utc:
        raise ConfigError(
            f"{files.server} is valid from {server.not_valid_before_utc:%Y-%m-%d} to "
            f"{server.not_valid_after_utc:%Y-%m-%d}, and this machine's clock says {now:%Y-%m-%d}; "
            "set the clock right, or make new certificates with dapperfl certs"
        )


def public_keys(folder: Path) -> dict[str, bytes]:
    """Read the public keys in a folder, by the name of their file, as the SuperLink takes them.

    Raises:
        ConfigError: there is none, or a file is no key of the kind that devices need.
    """
    try:
        names = sorted(os.listdir(folder)) if folder.exists() else []
    except OSError as error:
        raise ConfigError(f"{folder} cannot be read: {error.strerror or error}") from error
    paths = [folder / name for name in names if name.endswith(".pub")]
    keys = {path.stem: _public_key(path) for path in paths}
    if not keys:
        raise ConfigError(
            f"there is no public key (*.pub) in {folder}; dapperfl certs makes them, and "
            "ssh-keygen -t ecdsa -b 384 does"
        )
    return keys


def _public_key(path: Path) -> bytes:
    try:
        key = serialization.load_ssh_public_key(path.read_bytes())
    except (ValueError, OSError) as error:
        raise ConfigError(f"{path} cannot be read as a public key: {error}") from error
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise ConfigError(f"{path}: devices need an ECDSA key (ssh-keygen -t ecdsa -b 384)")
    return key.public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def check_private_key(path: Path) -> None:
    """Refuse a key that a device could not prove itself by.

    Raises:
        ConfigError: It cannot be read, wants a password, or is of another kind.
    """
    try:
        key = serialization.load_ssh_private_key(path.read_bytes(), None)
    except TypeError as error:
        raise ConfigError(
            f"{path} is protected by a password, which nobody could type; make a key without one: "
            'ssh-keygen -t ecdsa -b 384 -N ""'
        ) from error
    except (ValueError, OSError, UnsupportedAlgorithm) as error:
        raise ConfigError(
            f"{path} cannot be read as a private key: {error}; give the one that dapperfl certs "
            "has made, without .pub"
        ) from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ConfigError(f"{path}: devices need an ECDSA key (ssh-keygen -t ecdsa -b 384)")
