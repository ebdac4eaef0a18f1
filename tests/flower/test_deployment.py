"""Four devices of four levels, TLS and keys: the same numbers as in simulation.

While they work, three that do not belong there try to join.
"""

from contextlib import ExitStack
from pathlib import Path

import pytest
import torch
from tests.flower.conftest import write_config
from tests.flower.deployment import MARKS, Command, rounds, started, worked

from dapperfl.flower.certificates import Certificates
from dapperfl.flower.processes import free_port
from dapperfl.lab.build import load_federation
from dapperfl.lab.config import Config
from dapperfl.lab.experiment import run
from dapperfl.lab.folder import read_json, read_tensors

pytestmark = MARKS


def join_all(stack: ExitStack, config: Config, place: Path, port: int, keys: Certificates) -> None:
    """Let every device of a config join, each with its own key."""
    for device in load_federation(config).devices:
        words: list[object] = ["join", f"127.0.0.1:{port}", "--partition"]
        words += ["--root", config.data.root, "--state", place / f"device-{device.id}"]
        words += ["--certificate", keys.authority, "--key", keys.device_key(device.id)]
        stack.enter_context(started(words, place / f"join-{device.id}.txt"))


def refused(command: Command, words: str) -> None:
    """Expect one clear line, and an exit code that says it failed."""
    assert command.ended() == 1
    lines = [line for line in command.said().splitlines() if line.startswith("error: ")]
    assert len(lines) == 1
    assert words in lines[0]
    assert command.said().splitlines()[-1] == lines[0]


def test_a_deployment_learns_what_the_simulator_does(
    place, minidigits_root, certificates, strangers
):
    config = write_config(place / "run.toml", minidigits_root, "rounds=2", "net.width=8")
    port = free_port()
    out, address = place / "out", f"127.0.0.1:{port}"
    serve = ["serve", "run.toml", "--out", out, "--host", "127.0.0.1", "--port", port]
    with ExitStack() as stack:
        server = stack.enter_context(
            started([*serve, "--certs", certificates.folder], place / "serve.txt")
        )
        server.wait_for(r"listening on 127\.0\.0\.1")
        join_all(stack, config, place, port, certificates)
        knock = ["join", address, "--partition", "--id", 9]
        ours, theirs = certificates.authority, strangers.authority
        tries = {
            "no-key": (["--certificate", ours], "give yours with --key"),
            "wrong-key": (
                ["--certificate", ours, "--key", strangers.device_key(0)],
                "does not know the key",
            ),
            "wrong-certificate": (
                ["--certificate", theirs, "--key", certificates.device_key(0)],
                "is not signed by",
            ),
            "insecure": (["--insecure"], "does not answer without TLS"),
        }
        for name, (words, reason) in tries.items():
            arguments = [*knock, *words, "--state", place / name]
            with started(arguments, place / f"{name}.txt") as command:
                refused(command, reason)
        assert server.ended() == 0
        said = server.said()
    for device in load_federation(config).devices:
        assert f"device {device.id} joined: domain {device.domain}, rho {device.rho:g}" in said
    assert "device 9" not in said
    assert "round 2/2" in said
    assert "left out" not in said

    simulated = place / "simulated"
    run(config, simulated)
    assert_same_weights(out, simulated)
    assert_same_bytes(out, simulated, place)


def assert_same_weights(out: Path, simulated: Path) -> None:
    ours, theirs = (read_tensors(each / "model.safetensors")[0] for each in (out, simulated))
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        torch.testing.assert_close(tensor, theirs[name], atol=1e-5, rtol=0)
    start = load_start(simulated)
    moved = max(float((tensor - start[name]).abs().max()) for name, tensor in theirs.items())
    assert moved > 0.01, "a run that changes nothing proves nothing"


def load_start(folder: Path) -> dict[str, torch.Tensor]:
    """Return the weights that a run began with."""
    from dapperfl.lab.build import build
    from dapperfl.lab.resolve import resolve

    return dict(build(resolve(folder / "config.toml")).start().server.weights)


def assert_same_bytes(out: Path, simulated: Path, place: Path) -> None:
    """Compare what devices sent with the formula, level by level: once the net, in each round."""
    formula = {
        level["rho"]: level["upload_bytes"]
        for level in read_json(simulated / "summary.json")["levels"]
    }
    fleet = read_json(out / "allocation.json")["devices"]
    assert sorted(formula) == sorted(device["rho"] for device in fleet) == [0.0, 0.2, 0.4, 0.6]
    for device in fleet:
        sent = [
            row["sent"]
            for row in worked(place / f"device-{device['id']}")
            if row["phase"] == "train"
        ]
        assert len(sent) == 2
        for size in sent:
            assert size == pytest.approx(formula[device["rho"]], rel=0.02)
    for ours, theirs in zip(rounds(out), rounds(simulated), strict=True):
        for device in fleet:
            spent, planned = ours.costs[device["id"]], theirs.costs[device["id"]]
            assert spent.bytes_up == pytest.approx(planned.bytes_up, rel=0.02)
            assert spent.train_flops == planned.train_flops
