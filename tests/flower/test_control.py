"""What `dapperfl serve` asks its SuperLink for, and by which way."""

import http.server
import os
import threading
from collections.abc import Iterator

import pytest
from flwr.proto.control_pb2 import RegisterNodeResponse

from dapperfl.flower.control import connected


@pytest.fixture
def address() -> Iterator[str]:
    """The address of what answers as a SuperLink that is given a key."""

    class Registers(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            answer = RegisterNodeResponse(node_id=7).SerializeToString()
            self.send_response(200)
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Registers) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize("proxy", ["http://127.0.0.1:9", "socks5://127.0.0.1:9"])
def test_no_proxy_of_the_environment_stands_before_a_server_of_this_machine(
    address, monkeypatch, proxy
):
    for name in ("HTTP_PROXY", "ALL_PROXY", "http_proxy", "all_proxy"):
        monkeypatch.setenv(name, proxy)
    monkeypatch.setenv("no_proxy", "fl.example.org")
    before = dict(os.environ)
    with connected(address, "secret", None) as control:
        assert control.register([b"a key"]) == {7: b"a key"}
    assert dict(os.environ) == before
