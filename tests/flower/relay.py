"""A wire that can be looked at: passes bytes on between a device and its server, and keeps them."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field


@dataclass
class Relay:
    """Where a device connects to, and what it has sent through."""

    port: int
    sent: bytearray = field(default_factory=bytearray)


@contextmanager
def relayed(port: int) -> Iterator[Relay]:
    """Listen on a port of the loopback and pass everything on to another."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        relay = Relay(server.getsockname()[1])
        threading.Thread(target=_accept, args=(server, port, relay), daemon=True).start()
        yield relay
        server.shutdown(socket.SHUT_RDWR)


def _accept(server: socket.socket, port: int, relay: Relay) -> None:
    while True:
        try:
            device, _ = server.accept()
        except OSError:
            return
        try:
            upstream = socket.create_connection(("127.0.0.1", port))
        except OSError:
            device.close()
            continue
        for source, sink, kept in ((device, upstream, relay.sent), (upstream, device, None)):
            threading.Thread(target=_pass_on, args=(source, sink, kept), daemon=True).start()


def _pass_on(source: socket.socket, sink: socket.socket, kept: bytearray | None) -> None:
    with suppress(OSError):
        while data := source.recv(2**16):
            if kept is not None:
                kept += data
            sink.sendall(data)
    for end in (source, sink):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
        end.close()
