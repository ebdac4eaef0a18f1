"""The gate in front of Flower's SuperLink, asked as a web server asks it."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from dapperfl.flower.superlink import Gate, _patch

HERE, THERE = ("127.0.0.1", 5000), ("192.0.2.9", 5000)
SECRET = (b"x-dapperfl-secret", b"open sesame")


class Behind:
    """What the gate guards: it reads the whole request and says yes."""

    def __init__(self) -> None:
        self.read: list[bytes] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        pieces: list[bytes] = []
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            pieces.append(message["body"])
            if not message.get("more_body"):
                break
        self.read.append(b"".join(pieces))
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"yes"})


def ask(gate: Gate, path: str, client: Any = HERE, headers: Any = (), chunks: Any = (b"x",)) -> int:
    """Return the status of the answer; 0 if there is none."""
    scope = {"type": "http", "path": path, "headers": list(headers), "client": client}
    scope["server"] = ("192.0.2.1", 8443)
    waiting, sent = list(chunks), []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": waiting.pop(0), "more_body": bool(waiting)}

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(gate(scope, receive, send))
    return sent[0]["status"] if sent else 0


@pytest.fixture
def gate() -> Gate:
    return Gate(Behind(), "open sesame")


def test_devices_are_asked_to_come_back_until_the_run_has_been_started(gate):
    assert ask(gate, "/v1/fleet/activate-node", THERE) == 503
    assert ask(gate, "/v1/control/start-run", headers=[SECRET]) == 200
    assert ask(gate, "/v1/fleet/activate-node", THERE) == 200


def test_a_refused_start_opens_nothing(gate):
    assert ask(gate, "/v1/control/start-run") == 403
    assert ask(gate, "/v1/fleet/activate-node", THERE) == 503


@pytest.mark.parametrize(
    "path", ["/v1/control/start-run", "/v1/runtime/acquire-task", "/docs", "/v1/fleet", "/"]
)
def test_other_machines_find_nothing_but_the_fleet(gate, path):
    assert ask(gate, path, THERE, [SECRET]) == 404


@pytest.mark.parametrize("headers", [[], [(b"x-dapperfl-secret", b"guess")]])
def test_runs_are_started_by_those_who_know_the_secret(gate, headers):
    assert ask(gate, "/v1/control/start-run", headers=headers) == 403


@pytest.mark.parametrize("client", [HERE, ("::1", 5000), ("192.0.2.1", 5000)])
def test_flowers_own_processes_on_this_machine_are_answered(gate, client):
    assert ask(gate, "/v1/runtime/acquire-task", client) == 200


def test_nobody_is_from_here_without_an_address(gate):
    assert ask(gate, "/v1/runtime/acquire-task", None) == 404


@pytest.mark.parametrize("length", [b"67108865", b"-1", b"many"])
def test_a_request_that_says_it_is_too_long_is_not_read(gate, length):
    headers = [SECRET, (b"content-length", length)]
    assert ask(gate, "/v1/control/start-run", headers=headers) == 413


def test_a_request_that_does_not_say_how_long_it_is_is_cut_off(gate):
    chunks = [bytes(2**20)] * 65
    assert ask(gate, "/v1/control/start-run", headers=[SECRET], chunks=chunks) == 0
    assert ask(gate, "/v1/control/start-run", headers=[SECRET], chunks=chunks[1:]) == 200


def test_a_device_may_send_less_at_once_than_this_machine(gate):
    assert ask(gate, "/v1/control/start-run", headers=[SECRET]) == 200
    chunks = [bytes(2**20)] * 9
    assert ask(gate, "/v1/fleet/push-object", THERE, chunks=chunks) == 0
    assert ask(gate, "/v1/fleet/push-object", THERE, chunks=chunks[1:]) == 200
    length = [(b"content-length", b"8388609")]
    assert ask(gate, "/v1/fleet/push-object", THERE, length) == 413
    assert ask(gate, "/v1/runtime/push-object", chunks=chunks) == 200


def tree(*children: Any) -> SimpleNamespace:
    return SimpleNamespace(children=list(children))


CHUNK = tree()
MESSAGE = tree(tree(tree(CHUNK, CHUNK, CHUNK)))  # one piece, named three times


class RefusedError(Exception):
    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)


def push(kept: list[Any], tree: Any = CHUNK, sender: int = 7) -> None:
    """Send a message of node 7's, as the SuperLink has it after it was patched."""
    devices = SimpleNamespace(
        activate_node=None,
        push_messages=lambda request, state: kept.append(request),
        FlowerError=RefusedError,
        ApiErrorCode=SimpleNamespace(FLEET_RUN_STATUS_NOT_ALLOWED="no"),
    )
    _patch(SimpleNamespace(create_app=None), SimpleNamespace(), devices)
    message = SimpleNamespace(metadata=SimpleNamespace(src_node_id=sender))
    request = SimpleNamespace(
        node=SimpleNamespace(node_id=7), messages_list=[message], message_object_trees=[tree]
    )
    devices.push_messages(request=request, state=None)


@pytest.mark.parametrize(("most", "taken"), [("6", True), ("5", False)])
def test_a_message_of_too_many_pieces_is_refused_before_it_is_kept(monkeypatch, most, taken):
    monkeypatch.setenv("DAPPERFL_PARTS", most)
    kept: list[Any] = []
    if taken:
        push(kept, MESSAGE)
    else:
        with pytest.raises(RefusedError, match="more than 5 objects"):
            push(kept, MESSAGE)
    assert len(kept) == taken


def test_a_message_in_the_name_of_another_device_is_refused(monkeypatch):
    monkeypatch.setenv("DAPPERFL_PARTS", "6")
    kept: list[Any] = []
    with pytest.raises(RefusedError, match="in the name of another device"):
        push(kept, sender=8)
    assert kept == []
    push(kept)
    assert len(kept) == 1
