"""Certificates are judged by Python's TLS, keys by Flower's own readers."""

import errno
import ssl
import stat
import subprocess
from base64 import b64decode, b64encode
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_ssh_private_key,
)
from flwr.supercore.primitives.asymmetric import (
    bytes_to_public_key,
    public_key_to_bytes,
    sign_message,
    uses_nist_ec_curve,
    verify_signature,
)

from dapperfl.errors import ConfigError
from dapperfl.flower import certificates
from dapperfl.flower.certificates import (
    Certificates,
    check_private_key,
    check_server,
    make_certificates,
    public_keys,
)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    folder = tmp_path_factory.mktemp("made") / "certs"
    return make_certificates(folder, ["fl.example.org", "192.0.2.7"], 2)


def shake_hands(server: Certificates, authority: Path, host: str) -> dict[str, Any]:
    """Let a TLS client meet a TLS server without a network, and return whom it met."""
    ours = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ours.load_cert_chain(server.server, server.server_key)
    theirs = ssl.create_default_context(cafile=str(authority))
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [
        theirs.wrap_bio(down, up, server_hostname=host),
        ours.wrap_bio(up, down, server_side=True),
    ]
    for _ in range(4):
        for side in sides:
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    sides[0].do_handshake()
    return dict(sides[0].getpeercert() or {})


@pytest.mark.parametrize("host", ["fl.example.org", "192.0.2.7", "localhost", "127.0.0.1", "::1"])
def test_the_server_is_accepted_under_each_of_its_names_and_at_home(files, host):
    met = shake_hands(files, files.authority, host)
    names = {name.replace("0:0:0:0:0:0:0:1", "::1") for _, name in met["subjectAltName"]}
    assert host in names


def test_a_device_refuses_the_server_under_another_name(files):
    with pytest.raises(ssl.SSLCertVerificationError, match="mismatch"):
        shake_hands(files, files.authority, "example.net")


def test_a_device_refuses_a_server_of_another_authority(files, tmp_path):
    other = make_certificates(tmp_path, ["fl.example.org"], 1)
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(files, other.authority, "fl.example.org")


def test_private_keys_are_for_their_owner_alone(files):
    private = [files.authority_key, files.server_key, files.device_key(0), files.device_key(1)]
    assert {stat.S_IMODE(path.stat().st_mode) for path in private} == {0o600}


def test_flower_reads_the_keys_and_what_one_half_signs_the_other_verifies(files):
    known = public_keys(files.devices)
    assert list(known) == ["device-0", "device-1"]
    for index, name in enumerate(known):
        private = load_ssh_private_key(files.device_key(index).read_bytes(), None)
        public = bytes_to_public_key(known[name])
        assert known[name] == public_key_to_bytes(private.public_key())  # type: ignore[arg-type]
        assert uses_nist_ec_curve(public)
        assert verify_signature(public, b"now", sign_message(private, b"now"))  # type: ignore[arg-type]
    assert known["device-0"] != known["device-1"]


def test_ssh_keygen_agrees_about_the_keys(files):
    key = files.device_key(0)
    try:
        done = subprocess.run(["ssh-keygen", "-y", "-f", key], capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("there is no ssh-keygen")
    assert done.stdout.split()[:2] == key.with_suffix(".pub").read_text().split()[:2]


@pytest.mark.parametrize(
    "there", ["ca.crt", "server.key", "devices/device-1", "devices/device-0.pub"]
)
def test_nothing_is_overwritten_and_nothing_is_written_then(tmp_path, there):
    path = tmp_path / there
    path.parent.mkdir(exist_ok=True)
    path.write_text("mine")
    with pytest.raises(ConfigError, match=f"{path.name} is there already"):
        make_certificates(tmp_path, ["localhost"], 2)
    assert [each for each in tmp_path.rglob("*") if each.is_file()] == [path]
    assert path.read_text() == "mine"


@pytest.mark.parametrize(
    "host", ["", "https://fl.example.org", "fl.example.org:8443", "a b", "ü.de", f"{'x' * 64}.org"]
)
def test_a_host_that_no_certificate_can_name_is_refused(tmp_path, host):
    with pytest.raises(ConfigError, match="--host"):
        make_certificates(tmp_path / "certs", [host], 1)
    assert not (tmp_path / "certs").exists()


def test_a_folder_without_keys_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="no public key"):
        public_keys(tmp_path)


def test_a_key_of_another_kind_is_refused_by_name(tmp_path):
    text = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl"
    (tmp_path / "mine.pub").write_text(text)
    with pytest.raises(ConfigError, match=r"mine\.pub: devices need an ECDSA key"):
        public_keys(tmp_path)
    (tmp_path / "mine.pub").write_text("nonsense")
    with pytest.raises(ConfigError, match=r"mine\.pub cannot be read"):
        public_keys(tmp_path)


def locked(key: bytes) -> bytes:
    """Return a private key as if ssh-keygen had locked it with a password."""
    first, *lines, last = key.splitlines()
    plain = _text(b"none") * 2 + _text(b"")
    lock = _text(b"aes256-ctr") + _text(b"bcrypt") + _text(_text(bytes(16)) + bytes([0, 0, 0, 16]))
    data = b64decode(b"".join(lines)).replace(plain, lock, 1)
    return b"\n".join([first, b64encode(data), last, b""])


def _text(text: bytes) -> bytes:
    return len(text).to_bytes(4, "big") + text


def test_a_device_is_given_a_key_that_flower_can_use(files, tmp_path):
    check_private_key(files.device_key(0))
    other = Ed25519PrivateKey.generate().private_bytes(
        Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()
    )
    mine = tmp_path / "mine"
    for content, reason in (
        (locked(files.device_key(0).read_bytes()), "is protected by a password"),
        (other, "devices need an ECDSA key"),
        (files.device_key(0).with_suffix(".pub").read_bytes(), r"without \.pub"),
        (files.server_key.read_bytes(), "cannot be read as a private key"),
        (b"", "cannot be read as a private key"),
    ):
        mine.write_bytes(content)
        with pytest.raises(ConfigError, match=f"mine.*{reason}"):
            check_private_key(mine)


def test_what_was_made_is_in_order(files):
    check_server(files)


@pytest.mark.parametrize("name", ["ca.crt", "server.crt", "server.key"])
@pytest.mark.parametrize("text", ["", "nonsense"])
def test_a_server_needs_files_that_are_certificates(tmp_path, name, text):
    made = make_certificates(tmp_path, ["localhost"], 1)
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=rf"{name}.* cannot be .*dapperfl certs"):
        check_server(made)


def test_a_key_of_another_certificate_is_refused(files, tmp_path):
    made = make_certificates(tmp_path, ["localhost"], 1)
    made.server_key.write_bytes(files.server_key.read_bytes())
    with pytest.raises(ConfigError, match="KEY_VALUES_MISMATCH"):
        check_server(made)


def test_a_certificate_whose_time_is_over_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(certificates, "_CLOCKS_DIFFER", timedelta(days=3))
    monkeypatch.setattr(certificates, "_DAYS", -1)
    with pytest.raises(ConfigError, match="make new certificates"):
        check_server(make_certificates(tmp_path, ["127.0.0.1"], 1))


def test_a_folder_of_keys_that_cannot_be_read_is_not_taken_for_an_empty_one(tmp_path, monkeypatch):
    def denied(folder: Path) -> list[str]:
        raise PermissionError(errno.EACCES, "Permission denied", str(folder))

    with pytest.raises(ConfigError, match=r"there is no public key \(\*\.pub\) in .*missing"):
        public_keys(tmp_path / "missing")
    monkeypatch.setattr("os.listdir", denied)
    with pytest.raises(ConfigError, match=f"{tmp_path} cannot be read: Permission denied"):
        public_keys(tmp_path)
