"""Where a server is, and whether it answers as it should, asked before Flower asks in its way."""

import http.client
import socket
import ssl
from dataclasses import dataclass
from pathlib import Path

from dapperfl.errors import ConfigError, RunError

PORT = 8443  # unless told otherwise
_SECONDS = 10.0  # for an answer
_EARLY, _EXPIRED, _OTHER_NAME, _OTHER_ADDRESS = 9, 10, 62, 64  # OpenSSL's numbers of what is wrong
_TIME = "set the clocks right, or make new certificates with dapperfl certs"
_NAME = "call it by a name that its certificate has, or make one with dapperfl certs --host"
_REMEDIES = {_EXPIRED: _TIME, _OTHER_NAME: _NAME, _OTHER_ADDRESS: _NAME}


@dataclass(frozen=True)
class Address:
    """A host and a port."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def here(self) -> "Address":
        """How this machine itself reaches what listens there."""
        nearest = {"0.0.0.0": "127.0.0.1", "::": "::1"}
        return Address(nearest.get(self.host, self.host), self.port)


def parse_address(text: str) -> Address:
    """Read `HOST`, `HOST:PORT` or `[ADDRESS]:PORT`."""
    bare = text.count(":") > 1 and not text.startswith("[")
    host, colon, port = (text, "", "") if bare else text.rpartition(":")
    if not colon or text.endswith("]"):
        host, port = text, str(PORT)
    host = without_brackets(host)
    if not _is_host(host) or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise ConfigError(
            f'"{text}" is no address; expected HOST:PORT, such as fl.example.org:8443'
        )
    return Address(host, int(port))


def without_brackets(host: str) -> str:
    """Return a host as sockets take it: people write IPv6 addresses in brackets."""
    return host.removeprefix("[").removesuffix("]")


def _is_host(text: str) -> bool:
    """Say whether a text can be a host, so that waiting for it makes sense."""
    try:
        text.encode("idna")  # as it will be on its way to a name server
    except UnicodeError:
        return False
    return bool(text) and text.isprintable() and not set(text) & set(" /")


def why_silent(address: Address, authority: Path | None) -> str | None:
    """Return why a server does not answer, though it may later; None if it does.

    Args:
        address: Where to ask.
        authority: The certificate to check the server by; None to ask without TLS.

    Raises:
        ConfigError: the certificate to check it by cannot be read.
        RunError: one is there, and it is not the one that was expected.
    """
    context = None if authority is None else trusting(authority)
    try:
        if context is None:
            return _speak_plainly(address)
        _shake_hands(address, context)
    except ssl.SSLCertVerificationError as error:
        if error.verify_code == _EARLY:  # small devices start in 1970 and learn the time later
            return "its certificate is not valid yet by this clock; set the clocks right"
        remedy = _REMEDIES.get(error.verify_code, "use the ca.crt that was made with this server's")
        raise RunError(
            f"the certificate of {address} is not signed by {authority} for this name "
            f"({error.verify_message}); {remedy}"
        ) from error
    except ssl.SSLEOFError:
        return "it hangs up"  # on its way down or up
    except ssl.SSLError as error:
        raise RunError(
            f"{address} does not speak TLS ({error.reason}); was it started with --insecure?"
        ) from error
    except OSError as error:
        return error.strerror or str(error)
    return None


def trusting(authority: Path) -> ssl.SSLContext:
    """Return what checks a server by the certificate of its authority.

    Raises:
        ConfigError: It cannot be read.
    """
    try:
        return ssl.create_default_context(cafile=str(authority))
    except OSError as error:  # an SSLError is one
        reason = "it is none" if isinstance(error, ssl.SSLError) else error.strerror
        raise ConfigError(
            f"{authority} cannot be read as a certificate: {reason}; give the ca.crt that "
            "dapperfl certs has made"
        ) from error


def _shake_hands(address: Address, context: ssl.SSLContext) -> None:
    with (
        socket.create_connection((address.host, address.port), _SECONDS) as plain,
        context.wrap_socket(plain, server_hostname=address.host),
    ):
        pass


def _speak_plainly(address: Address) -> str | None:
    connection = http.client.HTTPConnection(address.host, address.port, timeout=_SECONDS)
    connection.connect()
    try:
        connection.request("GET", "/health")
        connection.getresponse().read()
    except (http.client.HTTPException, ConnectionError):
        _refuse_tls(address)
        return "it hangs up"
    finally:
        connection.close()
    return None


def _refuse_tls(address: Address) -> None:
    """Refuse a server that hangs up on plain words because it wants TLS."""
    anybody = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    anybody.check_hostname, anybody.verify_mode = False, ssl.CERT_NONE
    try:
        _shake_hands(address, anybody)
    except OSError:
        return
    raise RunError(
        f"{address} does not answer without TLS; give --certificate and --key instead of --insecure"
    )
