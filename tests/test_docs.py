"""What the documents say must be so: files exist, links lead somewhere, code runs."""

import importlib.util
import inspect
import json
import re
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import typer.testing

from dapperfl.cli import app
from dapperfl.data import benchmarks
from dapperfl.lab.compare.planned import Base, plan_runs
from dapperfl.lab.compare.rows import read_rows
from dapperfl.lab.compare.variants import Variant
from dapperfl.lab.reproduce.plans import PLANS, base_of
from dapperfl.methods.base import Method

ROOT = Path(__file__).parents[1]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
ELSEWHERE = {"take-home.md"}  # its code needs a run: test_take_home.py
BLOCKS = [
    pytest.param(code, id=f"{page.name}-{number}")
    for page in PAGES
    if page.name not in ELSEWHERE
    for number, code in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL))
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_local_link_leads_to_a_file_and_a_heading_in_it(page):
    for target, place in re.findall(r"\]\(([^)#]*)#?([^)]*)\)", page.read_text()):
        if "://" in target:
            continue
        path = page.parent / target if target else page
        assert path.exists(), f"{page.name} links to {target}"
        if place:
            assert place in headings(path), f"{page.name} links to {target}#{place}"


def headings(page: Path) -> set[str]:
    """Return the headings of a page as links name them."""
    found = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in found}


def test_the_paper_map_names_files_and_functions_that_exist():
    rows = re.findall(r"^\|[^|]+\| `([^`]+)` `([^`]+)` \| `([^`]+)` \|$",
                      (ROOT / "docs/paper-map.md").read_text(), re.MULTILINE)  # fmt: skip
    assert len(rows) > 18
    for file, name, test in rows:
        source = (ROOT / "src/dapperfl" / file).read_text()
        assert re.search(rf"^\s*(def|class) {name}\b", source, re.MULTILINE), (file, name)
        assert (ROOT / "tests" / test).exists(), test


def test_the_paper_map_names_every_table_and_figure_that_can_be_made():
    text = (ROOT / "docs/paper-map.md").read_text()
    assert sorted(re.findall(r"`dapperfl reproduce ([\w-]+)`", text)) == sorted(PLANS)


@pytest.mark.parametrize("code", BLOCKS)
def test_code_in_the_documents_runs(code, tmp_path, monkeypatch, minidigits_root):
    if "minidigits" in code:  # drawn already, for those who ask below data/ and for all others
        shutil.copytree(minidigits_root, tmp_path / "data")
    monkeypatch.setenv("DAPPERFL_DATA", str(minidigits_root))
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "document"}
    exec(compile(code, "<document>", "exec"), names)
    assert names.keys() - {"__name__", "__builtins__"}, "a block that does nothing shows nothing"


def test_the_page_on_methods_has_every_hook():
    text = (ROOT / "docs/add-a-method.md").read_text()
    told = re.findall(r"^\| `(\w+)(?:\(.*?\))?` \|", text, re.MULTILINE)
    hooks = [n for n, v in vars(Method).items() if inspect.isfunction(v) or isinstance(v, property)]
    assert sorted(told) == sorted(name for name in hooks if not name.startswith("_"))


def test_the_folder_to_try_is_a_benchmark_of_shapes_and_always_the_same(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    script = load_script("experiments/make_shapes.py")
    monkeypatch.setattr(script, "PICTURES", dict.fromkeys(script.DOMAINS, 5))
    found = []
    for root in (tmp_path / "one", tmp_path / "two"):
        script.draw_all(root)
        found.append(benchmarks.load("folder", root, size=32))
    one, two = found
    assert one.classes == tuple(sorted(script.SHAPES))
    assert set(one.domains) == set(script.DOMAINS)
    for name, domain in one.domains.items():
        assert (len(domain.train), len(domain.test)) == (8 * 4, 8 * 1)
        assert domain.train.images.equal(two.domains[name].train.images)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_and_option_that_is_shown_exists(page):
    blocks = re.findall(r"^ *```(?:console|bash|sh)\n(.*?)```", page.read_text(), re.M | re.S)
    runner = typer.testing.CliRunner()
    for line in "".join(blocks).replace("\\\n", " ").splitlines():
        _, found, words = line.partition("dapperfl ")
        if found and "pip install" not in line:
            asked = [*shlex.split(words, comments=True), "--help"]  # nothing is run then
            done = runner.invoke(app, asked, prog_name="dapperfl")
            assert done.exit_code == 0, (line, done.output)


def test_the_command_for_ones_own_net_trains_it(tmp_path, monkeypatch, minidigits_root):
    page = (ROOT / "docs/own-net.md").read_text()
    [code] = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (tmp_path / "mynet.py").write_text(code.partition("\n\n\n# What can be cut")[0])
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("DAPPERFL_DATA", str(minidigits_root))
    small = ["fleet.devices=4", "fleet.rhos=[0,0.4]", "data.fraction=0.05", "train.epochs=1"]
    small += ["rounds=1", "engine.name=loop", "engine.device=cpu"]
    runner = typer.testing.CliRunner()
    for line in re.findall(r"^PYTHONPATH=\. dapperfl (.*)$", page, re.MULTILINE):
        settings = [part for each in small for part in ("--set", each)]
        done = runner.invoke(app, [*shlex.split(line), *settings], prog_name="dapperfl")
        assert done.exit_code == 0, (line, done.output)
    assert list(tmp_path.glob("runs/*/summary.json"))


def test_the_messages_on_the_page_of_ones_own_net_are_those_of_the_package():
    _, _, table = (ROOT / "docs/own-net.md").read_text().partition("| Message |")
    cells = re.findall(r"^\| (`.*?`) \|", table, re.MULTILINE)
    said = "".join(path.read_text() for path in (ROOT / "src/dapperfl").rglob("*.py"))
    said = re.sub(r"[\"']\s*f?[\"']", "", said)  # a message may go over several lines
    messages = [part for cell in cells for part in re.findall(r"`(.*?)`", cell)]
    assert len(messages) > 15
    for message in messages:
        assert max(message.split("…"), key=len).strip() in said, message


def load_script(path: str) -> Any:
    """Import a script that is not part of the package."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_the_table_on_the_front_page_is_the_recorded_demo():
    summary = json.loads((ROOT / "results/demo/summary.json").read_text())
    text = (ROOT / "README.md").read_text()
    assert load_script("docs/make_demo.py").readme_with(text, summary) == text
    assert min(marks["last"] for marks in summary["domain_accuracy"].values()) >= 40


def test_the_page_of_results_is_what_its_rows_make(tmp_path):
    script = load_script("docs/make_results.py")
    text = script.PAGE.read_text()
    assert len(script.published()) >= 2
    assert script.made(text, images=tmp_path) == text
    drawn = {path.name for path in tmp_path.iterdir()}
    assert "results.png" in drawn
    shown = set(re.findall(r"\(images/([^)]+)\)", text))
    assert shown == drawn
    assert all((script.IMAGES / name).exists() for name in shown)


def test_the_tables_of_the_research_log_are_what_its_rows_make(tmp_path):
    script = load_script("docs/make_results.py")
    text = script.LOG.read_text()
    names = [path.stem for path in script.RESEARCH.glob("*.csv")]
    assert names
    assert sorted(re.findall(r"<!-- (\S+): begin -->", text)) == sorted(names)
    assert script.logged(text) == text


def test_published_rows_are_of_runs_that_the_package_still_plans():
    """Otherwise a table could not be continued, or would mix old and new settings."""
    script = load_script("docs/make_results.py")
    for name, path in script.published().items():
        overrides = ["data.protocol=fair"] if name.endswith("-fair") else []
        for row in read_rows(path):
            base = Base(row["base"], script.COMPARED.get(name))
            if name not in script.COMPARED:
                plan = PLANS[name.removesuffix("-fair")]
                both = [*overrides, "engine.precision=bf16"]
                base = base_of(plan, row["base"], both, quick=False)
            settings = tuple(text for text in row["settings"].split("; ") if text)
            variant = Variant(row["method"], row["preset"], settings, row["label"])
            [run] = plan_runs(base, [variant], [int(row["seed"])])
            assert run.id == row["id"], f"{name}: {row['label']}"


@pytest.mark.parametrize(
    ("name", "domain", "least"), [("digits", "mnist", 60), ("office", "amazon", 30)]
)
def test_the_narrow_runs_on_two_cores_reached_what_the_page_says(name, domain, least):
    lines = (ROOT / f"results/{name}-cpu-rounds.jsonl").read_text().splitlines()
    assert max(json.loads(line)["accuracy"][domain] for line in lines) >= least
