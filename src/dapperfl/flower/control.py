"""What `dapperfl serve` asks its SuperLink for: to know the devices' keys, and to start the run."""

import hashlib
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flwr.common.serde import fab_to_proto
from flwr.proto.control_pb2 import RegisterNodeRequest, StartRunRequest
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.fab import Fab
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.interceptors.http.utils import add_headers

from dapperfl.errors import RunError
from dapperfl.flower.app_folder import bundle
from dapperfl.flower.processes import DIRECT
from dapperfl.flower.superlink import HEADER


@dataclass(frozen=True)
class _Secret:
    """Shows the SuperLink's gate who is asking."""

    text: str

    def intercept(self, context: Any, call_next: Any) -> Any:
        """Add the secret to a request."""
        add_headers(context.request, {HEADER: self.text})
        return call_next(context)


class Control:
    """The SuperLink's ear for those who may start runs."""

    def __init__(self, client: ControlHttpClient) -> None:
        self._client = client

    def register(self, keys: Iterable[bytes]) -> dict[int, bytes]:
        """Let the devices with these public keys in; return them by the node that each is given."""
        requests = (RegisterNodeRequest(public_key=key) for key in keys)
        return {self._client.RegisterNode(each).node_id: each.public_key for each in requests}

    def start(self) -> None:
        """Ship the thin app and start it; from then on devices are answered."""
        app = bundle()
        fab = fab_to_proto(Fab(hashlib.sha256(app).hexdigest(), app, {}))
        if not self._client.StartRun(StartRunRequest(fab=fab)).HasField("run_id"):
            raise RunError("Flower's SuperLink did not start the run; its log says why")


@contextmanager
def connected(address: str, secret: str, authority: Path | None) -> Iterator[Control]:
    """Talk to the SuperLink at an address, with TLS if an authority's certificate is given."""
    with _without_proxy():
        client = ControlHttpClient.from_server_address(
            address,
            insecure=authority is None,
            root_certificates=None if authority is None else authority.read_bytes(),
            interceptors=[
                RuntimeVersionHttpInterceptor(component_name="dapperfl"),
                _Secret(secret),
            ],
        )
    try:
        yield Control(client)
    except RunError:
        raise
    except Exception as error:  # whatever Flower's client raises, nothing was started
        raise RunError(f"Flower's SuperLink did not do what it was asked: {error}") from error
    finally:
        client.close()


@contextmanager
def _without_proxy() -> Iterator[None]:
    """Have a client that is made meanwhile speak to the server itself: it offers no option."""
    before = {name: os.environ.get(name) for name in DIRECT}
    os.environ.update(DIRECT)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            os.environ.update({} if value is None else {name: value})
