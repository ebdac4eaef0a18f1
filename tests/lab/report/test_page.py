"""The document as a whole: complete, safe, and about nothing but itself."""

import re
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path

import pytest
from tests.lab.made_runs import write_run

from dapperfl.core.messages import Device
from dapperfl.errors import CheckpointError
from dapperfl.lab.gather import load_runs
from dapperfl.lab.groups import grouped
from dapperfl.lab.report import write_report
from dapperfl.lab.report.page import render

KEPT = [{0.8: {"conv": "4:3"}}, {0.8: {"conv": "4:5"}}]
EVIL = '<script>document.title="owned"</script>'
VOID = {"meta", "br"}


class _Checker(HTMLParser):
    """Collects text and elements, and insists on every element being closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] not in ("style", "script"):
            self.text.append(data)


def _read(page: str) -> _Checker:
    checker = _Checker()
    checker.feed(page)
    checker.close()
    assert checker.open == []
    return checker


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for seed in (0, 1):
        write_run(tmp_path / f"a{seed}", f"seed={seed}", kept=KEPT)
        write_run(tmp_path / f"b{seed}", "method=fedavg", f"seed={seed}", dark=(1, 2))
    return tmp_path


def _page(folder: Path) -> str:
    return render(grouped(load_runs([folder])))


def test_everything_that_was_asked_for_is_there(folder):
    text = " ".join(_read(_page(folder)).text)
    for title in (
        "Learning curves",
        "Final accuracy by domain",
        "Accuracy against cost",
        "Devices, domains and levels",
        "Channels that each level kept",
        "Runs, settings and versions",
        "Settings that differ",
        "method.gamma",
        "2.13.0",
        "No cut nets are recorded of",
        "mean of 2 seeds",
    ):
        assert title in text, title


def test_nothing_is_fetched_from_anywhere(folder):
    page = _page(folder)
    assert "://" not in page
    assert not re.search(r"@import|url\(", page)
    for tag, attributes in _read(page).seen:
        assert tag not in ("link", "iframe", "object", "embed")
        assert "src" not in attributes
        assert (attributes.get("href") or "#").startswith(("#", "data:image/png;base64,"))
    policies = [a["content"] for _, a in _read(page).seen if "http-equiv" in a]
    assert [str(policy).split(";")[0] for policy in policies] == ["default-src 'none'"]


def test_every_link_inside_leads_somewhere(folder):
    seen = _read(_page(folder)).seen
    ids = {attributes["id"] for _, attributes in seen if "id" in attributes}
    links = {a["href"] for tag, a in seen if tag == "a"}
    assert links
    assert links == {f"#{name}" for name in ids}


def test_names_with_markup_stay_names(tmp_path):
    path = tmp_path / EVIL.replace("/", "∕")
    fleet = [Device(0, EVIL, 0.8, 5)]
    write_run(path, "net.name=resnet10", devices=fleet, kept=[{0.8: {EVIL: "4:3"}}] * 2)
    config = path / "config.toml"
    text = config.read_text().replace('"dapperfl"', f"'{EVIL}'").replace('"0.1.0"', f"'{EVIL}'")
    config.write_text(text.replace('"minidigits"', f"'{EVIL}'"))
    lines = path / "rounds.jsonl"
    lines.write_text(lines.read_text().replace('"dark"', f'"{EVIL.replace(chr(34), chr(39))}"'))
    page = _page(tmp_path)
    assert len(re.findall("<script", page)) == 1
    assert [tag for tag, _ in _read(page).seen].count("script") == 1
    assert page.count("&lt;script&gt;") > 10


def test_each_benchmark_has_a_section_of_its_own(tmp_path):
    write_run(tmp_path / "a")
    write_run(tmp_path / "b", "data=tests.lab.toy_world:load", "method=fedavg")
    page = _page(tmp_path)
    first, second = page.split("<article>")[1:]
    assert "<h2>minidigits</h2>" in first
    assert "<h2>tests.lab.toy_world:load</h2>" in second
    assert "fedavg:default" not in first
    assert "dapperfl:default" not in second


def test_unfinished_runs_are_shown_as_such(tmp_path):
    write_run(tmp_path / "a", "rounds=7")
    write_run(tmp_path / "b", "rounds=7", "seed=4", finished=False)
    write_run(tmp_path / "c", "method=fedavg", "rounds=7", dark=(), light=(), finished=False)
    page = _page(tmp_path)
    assert "dapperfl:default, seed 4: unfinished: round 2 of 7" in page
    assert "fedavg:default, seed 0: unfinished: round 0 of 7" in page


def test_numbers_that_are_not_final_do_not_win(tmp_path):
    write_run(tmp_path / "a", "rounds=7")
    write_run(tmp_path / "b", "method=fedavg", "rounds=7", dark=(99,), light=(99,), finished=False)
    page = _page(tmp_path)
    assert "<strong>dapperfl:default</strong> has a global accuracy of 30.0 %" in page
    assert "<span>fedavg:default (unfinished)</span>" in page


def test_a_folder_with_nothing_but_a_run_that_began_is_a_report(tmp_path):
    write_run(tmp_path, dark=(), light=(), finished=False)
    page = _page(tmp_path)
    assert "Learning curves" not in page
    assert "unfinished: round 0 of 5" in page


def test_different_allocations_are_shown_each(tmp_path):
    write_run(tmp_path / "a")
    write_run(tmp_path / "b", "method=fedavg")
    write_run(tmp_path / "c", "seed=1", devices=[Device(0, "dark", 0.25, 70)] * 2)
    page = _page(tmp_path)
    captions = re.findall(r"Devices \(and their training images\), (seeds? [\d, ]+)</p>", page)
    assert captions == ["seed 0", "seed 1"]
    assert "2 (140)</span>" in page
    assert "1 (40)</span>" in page  # light, at 0.5


def test_the_same_runs_give_the_same_page(folder):
    assert _page(folder) == _page(folder)


def test_style_and_script_are_part_of_the_package():
    for name in ("style.css", "script.js"):
        assert files("dapperfl.lab.report").joinpath(name).is_file()


def test_the_report_lies_in_the_folder_that_holds_all_runs(folder):
    assert write_report([folder]) == folder / "report.html"
    assert write_report([folder / "a0", folder / "b1"]) == folder / "report.html"
    assert write_report([folder / "a0"]) == folder / "a0" / "report.html"
    assert write_report([folder], folder / "x" / "y.html").read_text() == _page(folder)
    with pytest.raises(CheckpointError, match="a0 is a folder; name a file: --out"):
        write_report([folder], folder / "a0")
