"""`dapperfl compare` as a user meets it; the runs are written by hand."""

from types import SimpleNamespace

import pytest

from dapperfl.lab.compare.rows import read_rows


@pytest.fixture
def cli(call):
    return lambda *arguments: call("compare", *arguments, "--set", "rounds=2")


def test_the_tables_are_shown_and_written(cli, scheduler, tmp_path):
    done = cli("--methods", "fedavg,w/o DAR=dapperfl{method.gamma=0}", "--seeds", "0,2",
               "--out", "o", "--baseline", "fedavg")  # fmt: skip
    assert done.exit_code == 0, done.stderr
    # seeds 0 and 2: best means 20 and 22, so 21 with a deviation of √2
    for text in (done.stdout, (tmp_path / "o/compare.md").read_text()):
        for part in ("w/o DAR", "21.00 (1.41)", "above fedavg", "+0.00 [+0.00, +0.00]"):
            assert part in text
    assert r"\toprule" in (tmp_path / "o/compare.tex").read_text()
    rows = read_rows(tmp_path / "o/compare.csv")
    assert [(row["method"], row["seed"], row["settings"]) for row in rows] == [
        ("fedavg", "0", ""), ("fedavg", "2", ""),
        ("dapperfl", "0", "method.gamma=0"), ("dapperfl", "2", "method.gamma=0"),
    ]  # fmt: skip


def test_the_same_command_finds_its_folder_and_runs_nothing_twice(cli, scheduler, tmp_path):
    first = cli("--methods", "fedavg,moon", "--seeds", "0")
    assert len(scheduler.begun) == 2
    second = cli("--methods", "fedavg,moon", "--seeds", "0")
    assert len(scheduler.begun) == 2
    assert (
        second.stdout.partition("demo: accuracy")[2] == first.stdout.partition("demo: accuracy")[2]
    )
    cli("--methods", "fedavg,moon,fedprox", "--seeds", "0")
    assert scheduler.begun[2:] == ["demo: fedprox, seed 0"]
    assert len(list((tmp_path / "runs").iterdir())) == 1


def test_without_a_file_a_table_is_called_after_its_pictures(cli, scheduler, tmp_path):
    own = ("--set", "data=tests.lab.toy_world:load", "--set", "data.fraction=0.3")
    done = cli("--methods", "fedavg", "--seeds", "0", *own)
    assert done.exit_code == 0, done.stderr
    assert scheduler.begun == ["tests.lab.toy_world:load: fedavg, seed 0"]
    [folder] = (tmp_path / "runs").iterdir()
    assert folder.name.startswith("compare-tests.lab.toy_world-load-")
    page = (folder / "compare.md").read_text()
    assert page.startswith("# Comparison on tests.lab.toy_world:load\n")
    assert "demo" not in page


def test_a_failed_run_is_named_and_the_table_made_of_the_others(cli, scheduler, tmp_path):
    scheduler.failing = {"demo: moon, seed 1"}
    done = cli("--methods", "fedavg,moon", "--seeds", "0,1", "--out", "o")
    assert done.exit_code == 1
    assert "error: demo: moon, seed 1 failed: it broke" in done.stderr
    page = (tmp_path / "o/compare.md").read_text()
    assert "Failed, and in no table: demo: moon, seed 1: it broke" in page
    assert "moon has seed 0 only" in page
    assert len(read_rows(tmp_path / "o/compare.csv")) == 3


def test_where_all_failed_there_is_no_table(cli, scheduler, tmp_path):
    scheduler.failing = {"demo: fedavg, seed 0"}
    done = cli("--methods", "fedavg", "--seeds", "0", "--out", "o")
    assert done.exit_code == 1
    assert "failed: it broke" in done.stderr
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["--methods", "fedavgg"], "fedavg"),
        (["--methods", "fedavg", "--seeds", "x"], "--seeds x"),
        (["--methods", "fedavg", "--set", "seed=1"], "chosen by --seeds"),
        (["--methods", "fedavg", "--baseline", "moon"], "there are fedavg"),
        (["none.toml", "--methods", "fedavg"], "none.toml"),
    ],
)
def test_a_wrong_wish_is_one_line_before_anything_is_run(cli, scheduler, arguments, part):
    done = cli(*arguments)
    assert done.exit_code == 2
    [line] = done.stderr.strip().splitlines()
    assert line.startswith("error: ")
    assert part in line
    assert scheduler.begun == []


@pytest.fixture
def two_domains(monkeypatch):
    made = SimpleNamespace(domains={"dark": None, "light": None})
    monkeypatch.setattr("dapperfl.lab.build.load_benchmark", lambda data: made)
    return made


def test_each_domain_is_held_out_in_turn(cli, scheduler, two_domains, tmp_path):
    done = cli("--methods", "fedavg,moon", "--seeds", "0,2", "--out", "o", "--unseen",
               "--baseline", "fedavg")  # fmt: skip
    assert done.exit_code == 0, done.stderr
    assert len(scheduler.begun) == 2 * 2 * 2
    rows = read_rows(tmp_path / "o/unseen.csv")
    assert {row["settings"] for row in rows} == {"data.held_out=dark", "data.held_out=light"}
    # The mean of two rounds in the dark is 15 and 17 with seeds 0 and 2, in the light 20 and 22.
    for text in (done.stdout, (tmp_path / "o/unseen.md").read_text()):
        for part in ("16.00 (1.41)", "21.00 (1.41)", "18.50 (1.41)", "above fedavg"):
            assert part in text


@pytest.mark.parametrize(
    ("domains", "arguments", "part"),
    [
        (["dark"], [], "two domains or more; there is dark"),
        (["dark", "none"], [], 'the name "none", which data.held_out takes for nothing'),
        (["dark", "mean"], [], 'the name "mean", which a column has'),
        (["dark", "light "], [], "data.held_out cannot be 'light '; rename this domain"),
        (["dark", "light"], ["--set", "data.held_out=dark"], "leave data.held_out unset"),
        (
            ["dark", "light"],
            ["--set", "data.blind=true", "--set", "data.reserve=5"],
            "looks at the test of a domain, data.blind = true at none",
        ),
        (["dark", "light"], ["--baseline", "moon"], "there are fedavg"),
        (
            ["dark", "light"],
            ["--set", "data.allocation={dark=10}"],
            "data.allocation gives devices to dark; leave it out",
        ),
        (
            ["dark", "light"],
            ["--methods", "fedavg,moon{data.held_out=dark}"],
            "leave data.held_out unset",
        ),
    ],
)
def test_what_cannot_be_held_out_is_said(cli, scheduler, two_domains, domains, arguments, part):
    two_domains.domains = dict.fromkeys(domains)
    done = cli("--methods", "fedavg", "--unseen", *arguments)
    assert done.exit_code == 2
    assert part in done.stderr
    assert scheduler.begun == []
