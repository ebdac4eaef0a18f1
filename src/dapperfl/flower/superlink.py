"""Flower's SuperLink, as `dapperfl serve` starts it: with a gate in front, and on a lifeline.

Flower answers on one port to devices (`/v1/fleet`), to its own processes on this machine, and to
whoever wants to start a run, which means to run any code; only the first asks for a key. The gate
lets other machines reach the first alone, and limits what a device sends before Flower keeps it:
the bytes of one request, and how many objects a message is put together from.
"""

import importlib
import os
from collections.abc import Awaitable, Callable, MutableMapping
from http import HTTPStatus
from ipaddress import ip_address
from typing import Any

from dapperfl.flower.lifeline import end_with_parent

SECRET = "DAPPERFL_SECRET"  # the environment variable by which the SuperLink learns it
PARTS = "DAPPERFL_PARTS"  # the same, for how many objects a device's message may consist of
CHUNK = 5 * 2**20  # bytes: Flower cuts large things into objects of this size
HEADER = "x-dapperfl-secret"
_DEVICES, _CONTROL = "/v1/fleet/", "/v1/control/"
_START = "/v1/control/start-run"
_MOST = 64 * 2**20  # bytes of one request
_MOST_OF_A_DEVICE = CHUNK + 3 * 2**20

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]


class Gate:
    """Passes on what each side may ask, and answers the rest itself.

    Args:
        app: Flower's application.
        secret: What the one who started the SuperLink proves itself by.
    """

    def __init__(self, app: Application, secret: str) -> None:
        self._app = app
        self._secret = secret
        self._open = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        refused = self._refusal(scope) if scope["type"] == "http" else None
        if refused is not None:
            await _answer(send, refused)
            return
        await self._app(scope, _limited(receive, _most(scope)), send)
        # Devices' keys are registered before the run starts; until then all would be strangers.
        self._open = self._open or scope.get("path") == _START

    def _refusal(self, scope: Scope) -> HTTPStatus | None:
        path, headers = scope["path"], dict(scope["headers"])
        length = headers.get(b"content-length", b"0")
        if not length.isdigit() or int(length) > _most(scope):
            return HTTPStatus.REQUEST_ENTITY_TOO_LARGE
        if path.startswith(_DEVICES):
            return None if self._open else HTTPStatus.SERVICE_UNAVAILABLE
        if not _is_here(scope):
            return HTTPStatus.NOT_FOUND
        if path.startswith(_CONTROL) and headers.get(HEADER.encode()) != self._secret.encode():
            return HTTPStatus.FORBIDDEN
        return None


def _is_here(scope: Scope) -> bool:
    """Say whether a request comes from this machine."""
    client, server = scope.get("client"), scope.get("server")
    if not client:
        return False
    # Flower's own processes call the address it is bound to, which need not be the loopback.
    return (server is not None and client[0] == server[0]) or ip_address(client[0]).is_loopback


def _most(scope: Scope) -> int:
    """Return how many bytes a request may have."""
    return _MOST_OF_A_DEVICE if str(scope.get("path")).startswith(_DEVICES) else _MOST


def _limited(receive: Receive, most: int) -> Receive:
    """Hang up on a request that is longer than it said, or did not say how long it is."""
    read = 0

    async def limited() -> MutableMapping[str, Any]:
        nonlocal read
        message = await receive()
        read += len(message.get("body", b""))
        return message if read <= most else {"type": "http.disconnect"}

    return limited


async def _answer(send: Send, status: HTTPStatus) -> None:
    await send({"type": "http.response.start", "status": status.value, "headers": []})
    await send({"type": "http.response.body", "body": status.phrase.encode()})


def parts_of(tree: Any) -> int:
    """Count the objects that a message is put together from, each as often as it is named."""
    count, waiting = 0, [tree]
    while waiting:
        count += 1
        waiting += waiting.pop().children
    return count


def main() -> None:
    """Run the SuperLink with the options of this command line."""
    end_with_parent()
    # By name: a function of the same name hides one of these modules.
    application, command, devices = (
        importlib.import_module(f"flwr.superlink.{name}")
        for name in ("main", "cli.flower_superlink", "servicer.fleet.fleet_handlers")
    )
    _patch(application, command, devices)
    command.flower_superlink()


def _patch(application: Any, command: Any, devices: Any) -> None:
    made, activate = application.create_app, devices.activate_node
    push, most = devices.push_messages, int(os.environ[PARTS])

    def create_app(*args: Any, **settings: Any) -> Any:
        app = made(*args, **settings)
        app.add_middleware(Gate, secret=os.environ[SECRET])
        return app

    def let_back_in(request: Any, state: Any) -> Any:
        # A device that was killed counts as here for a minute, and would be refused until then.
        node = state.get_node_id_by_public_key(request.public_key)
        if node is not None:
            state.deactivate_node(node)
        return activate(request=request, state=state)

    def refuse(reason: str) -> None:
        raise devices.FlowerError(devices.ApiErrorCode.FLEET_RUN_STATUS_NOT_ALLOWED, reason)

    def push_few(request: Any, state: Any) -> Any:
        # Before Flower makes room for it; later, the ServerApp would put it together unasked.
        if sum(map(parts_of, request.message_object_trees)) > most:
            refuse(f"a message of more than {most} objects is refused")
        # Flower compares the key with the node of the request, and that with no message in it.
        if any(each.metadata.src_node_id != request.node.node_id for each in request.messages_list):
            refuse("a message in the name of another device is refused")
        return push(request, state)

    application.create_app = create_app
    devices.push_messages = push_few
    devices.activate_node = let_back_in
    # What it starts stays in its group of processes, so that all can be ended together.
    command.get_popen_detach_kwargs = dict


if __name__ == "__main__":
    main()
