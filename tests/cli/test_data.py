"""`dapperfl data` as a user meets it: what is printed where, and the exit codes."""

import json
from pathlib import Path

import pytest
from PIL import Image
from tests.data.official import write_images, write_mnist
from typer.testing import CliRunner

from dapperfl.cli import app
from dapperfl.data.benchmarks import office_caltech


@pytest.fixture
def cli(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DAPPERFL_DATA", raising=False)
    runner = CliRunner()
    return lambda *arguments: runner.invoke(app, ["data", *arguments], prog_name="dapperfl")


@pytest.fixture
def office(tmp_path: Path) -> Path:
    folder = tmp_path / "Office_Caltech_10"
    for domain in office_caltech.LAYOUT.domains:
        write_images(folder / domain, office_caltech.LAYOUT.classes, 2)
    return folder


def test_the_commands_are_listed(cli):
    done = cli("--help")
    assert done.exit_code == 0
    assert all(name in done.stdout for name in ("prepare", "fetch", "list", "show"))


def test_prepare_reports_each_split_and_ends_well(cli, office, tmp_path):
    done = cli("prepare", "office_caltech", "--from", str(office), "--root", "data")
    assert done.exit_code == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["caltech", "train", "written", "16", "images"]
    assert "the official split has 899 pictures" in lines[1]
    assert "prepared data: data/office_caltech" in done.stdout
    assert done.stderr == ""
    again = cli("prepare", "office_caltech", "--from", str(office), "--root", "data")
    assert again.stdout.count(" kept ") == 8


def test_on_a_terminal_there_is_a_bar_for_each_split(cli, office, monkeypatch):
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    done = cli("prepare", "office_caltech", "--from", str(office), "--root", "data")
    assert done.exit_code == 0
    assert "webcam test" in done.stderr
    assert "webcam test" not in done.stdout


def test_prepare_says_what_is_missing_and_ends_with_code_1(cli, tmp_path):
    write_mnist(tmp_path / "raw", "train")
    done = cli("prepare", "digits", "--from", "raw", "--root", "data")
    assert done.exit_code == 1
    assert f"looked for train_32x32.mat in {tmp_path / 'raw'} and below" in done.stdout
    assert "dapperfl data prepare digits --from DIR" in done.stderr
    assert "Kaggle" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("error: ")
    assert (tmp_path / "data" / "digits" / "mnist_train.npz").is_file()


def test_the_root_may_come_from_the_environment(cli, office, tmp_path, monkeypatch):
    monkeypatch.setenv("DAPPERFL_DATA", str(tmp_path / "elsewhere"))
    assert cli("prepare", "office_caltech", "--from", str(office)).exit_code == 0
    manifest = tmp_path / "elsewhere" / "office_caltech" / "manifest.json"
    assert len(json.loads(manifest.read_text())["files"]) == 8


def test_fetch_explains_what_it_cannot_get(cli):
    done = cli("fetch", "office_caltech", "--root", "data")
    assert done.exit_code == 1
    assert "no stable public address" in done.stderr


def test_list_shows_sizes_licences_and_citations(cli, tmp_path):
    write_mnist(tmp_path / "raw", "train", 30)
    cli("prepare", "digits", "--from", "raw", "--root", "data")
    done = cli("list", "--root", "data")
    assert done.exit_code == 0
    lines = [line.split() for line in done.stdout.splitlines()]
    size = (tmp_path / "data" / "digits" / "mnist_train.npz").stat().st_size
    path = "data/digits/mnist_train.npz"
    assert ["mnist", "train", "30", "images", f"{size:,}", "bytes", path] in lines
    assert ["syn", "test", "missing"] in lines
    assert "CC BY-SA 3.0" in done.stdout
    assert "cite: Netzer" in done.stdout
    assert "root: data" in done.stdout


def test_show_draws_a_page(cli, office):
    cli("prepare", "office_caltech", "--from", str(office), "--root", "data")
    done = cli("show", "office_caltech", "--root", "data")
    assert done.exit_code == 0, done.stderr
    assert "contact sheet: office_caltech.png" in done.stdout
    with Image.open("office_caltech.png") as page:
        assert page.width > 1000
    assert cli("show", "office_caltech", "--root", "data", "--out", "a/b.png").exit_code == 0
    assert Path("a/b.png").is_file()


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("prepare", "digit", "--from", "."), 2, 'did you mean "digits"'),
        (("prepare", "digits", "--from", "nowhere"), 1, "nowhere is not a folder"),
        (("fetch", "pacs"), 2, "pacs"),
        (("show", "digits", "--root", "empty"), 1, "dapperfl data prepare digits --from DIR"),
        (("show", "digts"), 2, 'did you mean "digits"'),
    ],
)
def test_errors_are_one_line_and_a_code(cli, arguments, code, said):
    done = cli(*arguments)
    assert done.exit_code == code
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_ctrl_c_says_how_to_go_on(cli, office, monkeypatch):
    def interrupted(*_args, **_settings):
        raise KeyboardInterrupt

    monkeypatch.setattr("dapperfl.data.prepare.prepare", interrupted)
    done = cli("prepare", "office_caltech", "--from", str(office))
    assert done.exit_code == 130
    assert "run the same command again" in done.stderr
