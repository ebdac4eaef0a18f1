"""What `dapperfl local-fleet` makes of its config, before any process is started."""

import pytest
from tests.flower.village import Node, Village, serve_in, toy

from dapperfl.errors import CheckpointError, ConfigError
from dapperfl.flower.address import Address
from dapperfl.flower.local_fleet import _member, local_fleet
from dapperfl.flower.serving import Door
from dapperfl.lab.build import load_federation
from dapperfl.lab.records import load_records


def test_its_devices_run_the_code_that_its_own_config_names(tmp_path):
    config = toy("method=fedavg", "rounds=1")  # the toy world is code from outside
    out, door = tmp_path / "run", Door(Address("127.0.0.1", 1))
    devices = load_federation(config).devices
    village = Village(Node(dict(_member(each, config, out, door).settings)) for each in devices)
    serve_in(village, config, out)
    (line,) = load_records(out)
    assert set(line.costs) == {0, 1, 2}


@pytest.mark.parametrize("setting", ['deploy.classes=["a","b"]', "deploy.own_folders=true"])
def test_a_config_for_devices_with_pictures_of_their_own_is_refused(tmp_path, setting):
    with pytest.raises(ConfigError, match="dapperfl join --data"):
        next(local_fleet(toy(setting), tmp_path / "run", resume=False, secure=False))
    assert not (tmp_path / "run").exists()


def test_nothing_is_put_into_a_folder_that_is_no_run(tmp_path):
    (tmp_path / "letter.txt").write_text("mine")
    with pytest.raises(CheckpointError, match="is not empty"):
        next(local_fleet(toy(), tmp_path, resume=False, secure=True))
    assert [path.name for path in tmp_path.iterdir()] == ["letter.txt"]
