"""Addresses, and what answers at them, asked over the loopback."""

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

import pytest

from dapperfl.errors import ConfigError, RunError
from dapperfl.flower import certificates
from dapperfl.flower.address import Address, parse_address, why_silent
from dapperfl.flower.certificates import Certificates, make_certificates
from dapperfl.flower.processes import free_port, require_port


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("fl.example.org:9000", "fl.example.org", 9000),
        ("fl.example.org", "fl.example.org", 8443),
        ("192.0.2.7:1", "192.0.2.7", 1),
        ("[2001:db8::1]:9000", "2001:db8::1", 9000),
        ("[2001:db8::1]", "2001:db8::1", 8443),
        ("2001:db8::1", "2001:db8::1", 8443),
    ],
)
def test_an_address_is_read(text, host, port):
    assert parse_address(text) == Address(host, port)
    assert parse_address(str(parse_address(text))) == Address(host, port)


@pytest.mark.parametrize(
    "text",
    [
        *("", ":8443", "host:", "host:0", "host:70000", "https://host:1"),
        *("a..b:1", ".host", "my host", "host\t", f"{'x' * 64}.org"),  # no name server knows these
    ],
)
def test_what_is_no_address_is_refused(text):
    with pytest.raises(ConfigError, match="no address"):
        parse_address(text)


def test_a_server_on_all_addresses_is_reached_over_the_loopback():
    assert str(Address("0.0.0.0", 1).here) == "127.0.0.1:1"
    assert str(Address("::", 1).here) == "[::1]:1"
    assert str(Address("192.0.2.7", 1).here) == "192.0.2.7:1"


@contextmanager
def listening(behave: Callable[[socket.socket], None]) -> Iterator[Address]:
    """Do something with every connection to a port of the loopback, in a thread."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def work() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    try:
                        behave(connection)
                    except OSError:
                        continue

        thread = threading.Thread(target=work)
        thread.start()
        try:
            yield Address("127.0.0.1", server.getsockname()[1])
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certs"), ["127.0.0.1"], 1)


@contextmanager
def secured(files: Certificates) -> Iterator[Address]:
    """Listen with TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.server, files.server_key)
    with listening(lambda plain: context.wrap_socket(plain, server_side=True).close()) as address:
        yield address


@pytest.fixture(scope="module")
def secure(files: Certificates) -> Iterator[Address]:
    with secured(files) as address:
        yield address


@pytest.fixture(scope="module")
def plain() -> Iterator[Address]:
    def reply(connection: socket.socket) -> None:
        connection.recv(1000)
        connection.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")

    with listening(reply) as address:
        yield address


def test_the_expected_server_answers(secure, plain, files):
    assert why_silent(secure, files.authority) is None
    assert why_silent(plain, None) is None


def test_nobody_there_means_wait(files):
    address = Address("127.0.0.1", free_port())
    assert why_silent(address, files.authority) == "Connection refused"
    assert why_silent(address, None) == "Connection refused"


def test_a_server_that_hangs_up_may_be_on_its_way(files):
    with listening(lambda connection: None) as address:
        assert why_silent(address, None) == "it hangs up"
        assert why_silent(address, files.authority) is not None


def test_a_server_of_another_authority_is_refused(secure, tmp_path):
    other = make_certificates(tmp_path, ["127.0.0.1"], 1)
    with pytest.raises(RunError, match=r"is not signed by .*ca\.crt"):
        why_silent(secure, other.authority)


@pytest.mark.parametrize("host", ["fl.example.org", "192.0.2.7"])
def test_a_server_that_is_called_by_another_name_is_refused(secure, files, monkeypatch, host):
    there, connect = ("127.0.0.1", secure.port), socket.create_connection
    monkeypatch.setattr(socket, "create_connection", lambda _, seconds: connect(there, seconds))
    with pytest.raises(RunError, match="call it by a name that its certificate has"):
        why_silent(Address(host, secure.port), files.authority)


def test_a_server_whose_certificate_is_too_old_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(certificates, "_CLOCKS_DIFFER", timedelta(days=3))
    monkeypatch.setattr(certificates, "_DAYS", -1)
    old = make_certificates(tmp_path, ["127.0.0.1"], 1)
    with secured(old) as address, pytest.raises(RunError, match=r"expired.*set the clocks right"):
        why_silent(address, old.authority)


def test_a_device_that_does_not_know_the_time_yet_waits(tmp_path, monkeypatch):
    monkeypatch.setattr(certificates, "_CLOCKS_DIFFER", timedelta(days=-3))
    early = make_certificates(tmp_path, ["127.0.0.1"], 1)
    with secured(early) as address:
        assert "not valid yet by this clock; set the clocks right" in str(
            why_silent(address, early.authority)
        )


@pytest.mark.parametrize("text", ["", "nonsense"])
def test_an_authority_that_is_none_is_named_and_not_waited_for(tmp_path, text):
    path = tmp_path / "ca.crt"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"ca\.crt cannot be read as a certificate: it is none"):
        why_silent(Address("127.0.0.1", 1), path)
    with pytest.raises(ConfigError, match=r"cannot be read as a certificate: No such file"):
        why_silent(Address("127.0.0.1", 1), tmp_path / "nothing.crt")


def test_tls_and_none_do_not_go_together(secure, plain, files):
    with pytest.raises(RunError, match="does not speak TLS"):
        why_silent(plain, files.authority)
    with pytest.raises(RunError, match="does not answer without TLS"):
        why_silent(secure, None)


def test_a_port_that_is_taken_is_refused_by_number(plain):
    with pytest.raises(RunError, match=f"cannot listen on 127.0.0.1, port {plain.port}: .* in use"):
        require_port("127.0.0.1", plain.port)
    with pytest.raises(RunError, match="cannot listen on 192"):
        require_port("192.0.2.77", 8443)
    require_port("127.0.0.1", free_port())
