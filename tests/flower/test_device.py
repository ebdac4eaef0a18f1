"""What a device is, what it refuses to do, and what it does not tell."""

import errno
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from flwr.app import Context, Message, RecordDict
from tests.flower.village import Village, assembled, nodes_of, toy

from dapperfl.core.messages import Assignment, LocalModel
from dapperfl.core.state import State
from dapperfl.errors import CheckpointError, ConfigError, DataError, MessageError, RunError
from dapperfl.flower.client_app import app
from dapperfl.flower.device import Settings, reason_of
from dapperfl.flower.letters import letter, part, refused
from dapperfl.flower.runner import FlowerRunner

STATE = {"device-id": 1, "state": "/state"}


# --- settings ---


def test_settings_are_read_off_the_node_config():
    given = {**STATE, "rho": 0.5, "data": "/mine", "domain": "ink", "keep-aside": 0.1}
    found = Settings.read({**given, "root": "/here", "modules": "a.b,c"})
    assert found == Settings(
        1, Path("/state"), 0.5, Path("/mine"), "ink", 0.1, Path("/here"), ("a.b", "c")
    )
    assert Settings.read(STATE) == Settings(1, Path("/state"))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"state": "/state"}, "lack 'device_id'"),
        ({"device-id": 1}, "lack 'state'"),
        ({**STATE, "device-id": "one"}, "wrong"),
        ({**STATE, "rho": "much"}, "wrong"),
        ({**STATE, "keep-aside": 1.0}, "keep-aside"),
        ({**STATE, "data": "/mine"}, "must say its rho"),
    ],
)
def test_wrong_settings_are_refused(given, words):
    with pytest.raises(ConfigError, match=words):
        Settings.read(given)


# --- what it tells ---


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (RunError("the loss is nan in epoch 1"), "the loss is nan in epoch 1"),
        (MessageError("round 2 is over"), "round 2 is over"),
        (DataError("/home/me/secret is empty"), "the device cannot use its pictures"),
        (CheckpointError("/home/me/secret is damaged"), "the device failed with CheckpointError"),
        (OSError(errno.ENOSPC, "full", "/home/me/secret"), "the device's disk is full"),
        (OSError("/home/me/secret"), "the device failed with an error"),
        (ValueError("label 7 of secret.png"), "the device failed with an error"),
        (MemoryError("secret"), "the device has too little memory"),
    ],
)
def test_reasons_tell_nothing_private(error, told):
    assert reason_of(error).startswith(told)
    assert "secret" not in reason_of(error)


# --- what it refuses to do ---


class Asking:
    """A device, and a server that asks it for something."""

    def __init__(self, tmp_path, *settings: str) -> None:
        config = toy("method=fedavg", *settings)
        self.village = Village(nodes_of(config, tmp_path))
        self.simulator = assembled(self.village, config, tmp_path / "run")
        assert isinstance(self.simulator.runner, FlowerRunner)
        self.runner = self.simulator.runner
        self.server = self.simulator.start().server
        self.device = self.simulator.federation.devices[0]
        self.task = Assignment(1, self.device, self.server.model, 1)

    def ask(self, task: Assignment) -> str | None:
        (content,) = [content for _, content, _ in self.runner._letters([task])]
        return self.send(content)

    def send(self, content: RecordDict) -> str | None:
        node = self.village.nodes[101]
        message = Message(content, 101, "train")
        reply = app(message, Context(1, 101, node.settings, RecordDict(), {}))
        return refused(reply.content)

    def weights(self, value: float) -> LocalModel:
        model = self.server.model
        weights: State = {n: torch.full_like(t, value) for n, t in model.weights.items()}
        return LocalModel(weights, model.submodel)


def test_a_task_is_done_and_may_be_asked_again_but_no_older_one(tmp_path):
    asking = Asking(tmp_path)
    assert asking.ask(replace(asking.task, round_num=3)) is None
    assert asking.ask(replace(asking.task, round_num=3)) is None
    assert asking.ask(replace(asking.task, round_num=2)) is None  # its checkpoint was damaged
    assert asking.ask(replace(asking.task, round_num=4)) is None
    told = asking.ask(replace(asking.task, round_num=2))
    assert told == "round 2 is over; from round 3 on I answer"


def test_tasks_that_no_server_should_send_are_refused(tmp_path):
    asking = Asking(tmp_path)
    assert "epochs" in str(asking.ask(replace(asking.task, epochs=10**6)))
    assert "not finite" in str(asking.ask(replace(asking.task, model=asking.weights(torch.nan))))
    other = replace(asking.device, id=2)
    assert "this is" in str(asking.ask(replace(asking.task, device=other)))
    weak = replace(asking.device, rho=0.9)
    assert "this is" in str(asking.ask(replace(asking.task, device=weak)))
    asking.runner.inbox.run = "run-other"
    assert "another run" in str(asking.ask(asking.task))
    state = Path(str(asking.village.nodes[101].settings["state"]))
    assert not list(state.glob("*/*.safetensors"))  # nothing was worked on


def test_garbage_is_answered_with_a_reason(tmp_path):
    asking = Asking(tmp_path)
    assert "none of dapperfl's" in str(asking.send(RecordDict()))
    empty = letter({name: part(b"") for name in ("terms", "model", "task")})
    assert "cannot be read" in str(asking.send(empty))
    terms = part(asking.runner.roster.terms)
    noise = letter({"terms": terms, "model": part(b"x" * 99), "task": part(b"y" * 99)})
    assert "the message" in str(asking.send(noise))
    assert "the message" in str(asking.send(letter({"terms": terms})))


def test_training_that_fails_is_told_without_details(tmp_path, monkeypatch):
    asking = Asking(tmp_path)

    def broken(*args, **kwargs):
        raise OSError("/home/me/secret.png")

    monkeypatch.setattr("dapperfl.sim.loop.train_client", broken)
    (record,) = [next(asking.simulator.rounds())]
    told = {out.device.id: out.reason for out in record.left_out}
    assert told == dict.fromkeys(range(3), "the device failed with an error; its log says more")
    assert "secret" not in "".join(asking.village.wire_text())
    worked = (tmp_path / "device-0" / "worked.jsonl").read_text().splitlines()
    errors = [found for line in worked if (found := json.loads(line).get("error"))]
    assert errors == ["/home/me/secret.png"]  # its owner must know


def test_a_disk_that_takes_nothing_is_not_named(tmp_path):
    asking = Asking(tmp_path)
    (tmp_path / "secret").write_text("a file, no folder")
    asking.village.nodes[101].settings["state"] = str(tmp_path / "secret")
    assert asking.ask(asking.task) == "the device failed with an error; its log says more"


def test_its_owner_is_told_what_it_did(tmp_path):
    asking = Asking(tmp_path, "data.validation=0.2")
    next(asking.simulator.rounds())
    asking.ask(replace(asking.task, epochs=10**6))
    lines = (tmp_path / "device-0" / "worked.jsonl").read_text().splitlines()
    hello, train, failed = map(json.loads, lines)
    assert (hello["phase"], hello["run"]) == ("hello", asking.runner.inbox.run)
    assert (train["phase"], train["round"]) == ("train", 1)
    assert 0 <= train["correct"] <= train["tested"] > 0
    assert train["sent"] > 1000
    assert train["loss"] > 0
    assert "epochs" in failed["error"]
