"""A web server on loopback that misbehaves as it is told, one request after the other."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Misbehaving(ThreadingHTTPServer):
    """Serves files; each request takes the next behaviour, and the last one is `whole`."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files: dict[str, bytes] = {}
        self.script: list[str] = []
        self.asked: list[tuple[str, str | None]] = []  # path and range of every request
        self.over = threading.Event()  # lets stalled answers go

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: Misbehaving

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass

    def do_GET(self) -> None:
        asked = self.headers.get("Range")
        self.server.asked.append((self.path, asked))
        behaviour = self.server.script.pop(0) if self.server.script else "whole"
        data = self.server.files.get(self.path.removeprefix("/moved"))
        if data is None:
            behaviour = "404"
        start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked else 0
        if behaviour.isdecimal():
            self._head(int(behaviour), 0)
        elif behaviour.startswith("to "):
            self._head(302, 0, Location=behaviour.removeprefix("to "))
        else:
            assert data is not None
            self._answer(behaviour, data, start)

    def _head(self, status: int, length: int | None, **headers: str) -> None:
        self.send_response(status)
        if length is not None:
            self.send_header("Content-Length", str(length))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()

    def _answer(self, behaviour: str, data: bytes, start: int) -> None:
        if start >= len(data):
            self._head(416, 0)
            return
        if behaviour == "ignore" or start == 0:
            start = 0
            self._head(200, None if behaviour == "no length" else len(data))
        else:
            shift = 1 if behaviour == "other part" else 0
            span = f"bytes {start + shift}-{len(data) - 1}/{len(data)}"
            self._head(206, len(data) - start - shift, Content_Range=span)
        rest = data[start:]
        if behaviour in ("cut", "stall"):
            self.wfile.write(rest[: len(rest) // 2])
            self.wfile.flush()
            if behaviour == "stall":
                self.server.over.wait(20)
            return
        self.wfile.write(bytes(len(rest)) if behaviour == "wrong" else rest)


@contextmanager
def serving() -> Iterator[Misbehaving]:
    """Run a server in a thread."""
    server = Misbehaving()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.over.set()
        server.shutdown()
        server.server_close()
        thread.join()
