"""`dapperfl certs`, `serve`, `join` and `local-fleet`: what is wrong is said in one line.

What they do when all is well needs real processes; see tests/flower.
"""

import importlib.util
import socket
from pathlib import Path

import pytest

from dapperfl.errors import RunError

COMMANDS = {
    "certs": ["certs", "made", "--host", "localhost", "--devices", "1"],
    "serve": ["serve", "--out", "out", "--insecure"],
    "join": ["join", "localhost", "--partition", "--insecure", "--id", "0"],
    "local-fleet": ["local-fleet", "--out", "out"],
}


def assert_refused(result, words, code=2):
    assert result.exit_code == code
    assert result.stderr.count("\n") == 1
    assert result.stderr.startswith("error: ")
    assert words in result.stderr


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("package", ["flwr", "cryptography"])
def test_without_flower_it_says_how_to_install_it(call, monkeypatch, command, package):
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == package else real(name)
    )
    result = call(*COMMANDS[command])
    assert_refused(result, f'({package}); run: pip install "dapperfl[flower]"')
    assert list(Path().iterdir()) == []


def test_certs_are_made_once(call):
    result = call("certs", "made", "--host", "localhost", "--devices", "2")
    assert result.exit_code == 0
    assert "made/devices/device-0 to made/devices/device-1" in result.stdout
    names = sorted(path.name for path in Path("made/devices").iterdir())
    assert names == ["device-0", "device-0.pub", "device-1", "device-1.pub"]
    assert_refused(call(*COMMANDS["certs"]), "made/ca.crt is there already")


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--insecure", "--certs", "made"],
        ["--insecure", "--keys", "made"],
        ["--keys", "made"],
    ],
)
def test_a_server_is_secure_or_says_that_it_is_not(call, words):
    result = call("serve", "--out", "out", *words)
    assert_refused(result, "give --certs DIR (dapperfl certs makes it), or say --insecure")


def test_a_server_needs_its_certificates_and_keys(call):
    serve = ["serve", "--out", "out", "--certs", "made"]
    assert_refused(call(*serve), "made/ca.crt; make it with dapperfl certs")
    call(*COMMANDS["certs"])
    Path("empty").mkdir()
    assert_refused(call(*serve, "--keys", "empty"), "no public key (*.pub) in empty")


def test_more_devices_than_have_keys_are_not_waited_for(call):
    call(*COMMANDS["certs"])  # for one
    serve = ["serve", "--out", "out", "--certs", "made", "--set", "fleet.devices=4"]
    words = "made/devices has the keys of 1 devices, but the run waits for 4; copy those"
    assert_refused(call(*serve), words)
    own = ["--set", 'deploy.classes=["a","b"]', "--set", "deploy.devices=2"]
    assert_refused(call(*serve, *own), "but the run waits for 2")
    assert not Path("out").exists()


def test_local_fleet_has_one_word_for_how_many_devices_there_are(call):
    result = call(*COMMANDS["local-fleet"], "--set", "fleet.devices=2")
    assert_refused(result, "--devices says how many there are; leave out --set fleet.devices")
    assert not Path("out").exists()


@pytest.mark.parametrize(
    ("words", "devices"),
    [([], 4), (["run.toml"], 7), (["run.toml", "--devices", "5"], 5)],
)
def test_local_fleet_has_as_many_devices_as_it_is_told(call, monkeypatch, words, devices):
    found = []

    def fleet(config, out, **how):
        found.append(config.fleet.devices)
        raise RunError("seen")

    monkeypatch.setattr("dapperfl.flower.local_fleet.local_fleet", fleet)
    Path("run.toml").write_text("[fleet]\ndevices = 7")
    call("local-fleet", *words, "--out", "out")
    assert found == [devices]


def test_local_fleet_goes_on_with_the_devices_it_had(call, monkeypatch):
    found = []

    def fleet(config, out, **how):
        found.append(config.fleet.devices)
        raise RunError("seen")

    monkeypatch.setattr("dapperfl.flower.local_fleet.local_fleet", fleet)
    Path("out").mkdir()
    Path("out/config.toml").write_text("[fleet]\ndevices = 6")
    call("local-fleet", "--out", "out", "--resume")
    assert found == [6]


@pytest.mark.parametrize(
    ("words", "function"),
    [
        (["serve", "--insecure"], "serving.serve"),
        (["local-fleet"], "local_fleet.local_fleet"),
    ],
)
def test_a_run_that_ended_while_it_waited_for_devices_goes_on_with_its_config(
    call, monkeypatch, words, function
):
    found = []

    def start(config, out, *rest, **how):
        found.append((config.fleet.devices, config.rounds))
        raise RunError("seen")

    monkeypatch.setattr(f"dapperfl.flower.{function}", start)
    Path("out/.flower").mkdir(parents=True)
    Path("out/.flower/config.toml").write_text("rounds = 9\n[fleet]\ndevices = 6")
    call(*words, "--out", "out", "--resume", "--set", "rounds=8")
    assert found == [(6, 8)]


def test_a_used_folder_is_not_overwritten(call):
    Path("out").mkdir()
    Path("out/config.toml").write_text("rounds = 3")
    for command in ("serve", "local-fleet"):
        assert_refused(call(*COMMANDS[command]), "out is not empty", code=1)
        assert_refused(call(*COMMANDS[command], "--resume", "--set", "seed=5"), "seed = 5")
    assert_refused(call("serve", "--insecure", "--resume"), "--resume needs the run folder")


def test_a_config_that_cannot_be_dealt_out_starts_nothing(call):
    result = call(*COMMANDS["serve"], "--set", "fleet.devices=2")
    assert_refused(result, "fleet.devices = 2, but minidigits has 4 domains")
    assert not Path("out/.flower").exists()


def test_an_address_in_brackets_is_the_same_address(call, monkeypatch):
    asked = []

    def refuse(host: str, port: int) -> None:
        asked.append(host)
        raise RunError("seen")

    monkeypatch.setattr("dapperfl.flower.serving.require_port", refuse)
    call(*COMMANDS["serve"], "--host", "[::1]")
    call(*COMMANDS["serve"], "--host", "::1")
    assert asked == ["::1", "::1"]


def test_a_port_that_is_taken_is_named(call):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        result = call(*COMMANDS["serve"], "--host", "127.0.0.1", "--port", port)
    assert_refused(result, f"cannot listen on 127.0.0.1, port {port}", code=1)


def test_a_server_listens_somewhere(call):
    assert_refused(call(*COMMANDS["serve"], "--host", ""), "expected an address of this machine")


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--id", "0", "--insecure"], "give --data DIR, or --partition"),
        (["--id", "0", "--insecure", "--partition", "--data", "."], "give --data DIR, or"),
        (["--partition", "--insecure"], "give the device's number with --id"),
        (["--id", "0", "--partition"], "or say --insecure"),
        (["--id", "0", "--partition", "--insecure", "--key", "mine"], "--insecure goes without"),
        (["--id", "0", "--partition", "--certificate", "ca.crt"], "there is no file ca.crt"),
        (["--id", "0", "--insecure", "--data", "nowhere"], "there is no folder nowhere"),
        (["--id", "0", "--insecure", "--data", ".", "--rho", "1"], "--rho 1: expected a share"),
        (["--id", "0", "--insecure", "--data", ".", "--keep-aside", "1"], "--keep-aside 1.0"),
        (["--id", "0", "--insecure", "--data", ".", "--domain", ""], "--domain: expected one"),
        (["--id", "0", "--insecure", "--data", ".", "--domain", "a\tb"], "--domain: expected one"),
        (["--id", "0", "--insecure", "--data", ".", "--domain", "x" * 301], "most 300 printable"),
        (["--id", "0", "--insecure", "--data", ".", "--root", "."], "--root goes with --partition"),
        (["--id", "0", "--insecure", "--partition", "--domain", "a"], "go with --data"),
        (["--id", "0", "--insecure", "--partition", "--keep-aside", "0.5"], "go with --data"),
        (["--id", str(2**63), "--insecure", "--partition"], "too large for a device's number"),
        (["--id", "0", "--insecure", "--partition", "--state", "a\udcff"], "a\\udcff is not UTF-8"),
    ],
)
def test_a_device_that_cannot_join_says_why(call, words, reason):
    assert_refused(call("join", "localhost:1", *words), reason)


def test_a_key_that_is_none_is_refused_before_a_server_is_waited_for(call):
    call(*COMMANDS["certs"])
    words = ["--partition", "--certificate", "made/ca.crt", "--key", "made/devices/device-0.pub"]
    assert_refused(call("join", "localhost:1", *words), "device-0.pub cannot be read as a private")


def test_an_address_that_is_none_is_refused(call):
    assert_refused(call("join", "http://x:1", *COMMANDS["join"][2:]), "is no address")
