"""What the documents say must be so: files exist, links lead somewhere, code runs."""

import importlib.util
import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCKS = [
    pytest.param(code, id=f"{page.name}-{number}")
    for page in PAGES
    for number, code in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL))
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_local_link_leads_to_a_file(page):
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_paper_map_names_files_and_functions_that_exist():
    rows = re.findall(r"^\|[^|]+\| `([^`]+)` `([^`]+)` \| `([^`]+)` \|$",
                      (ROOT / "docs/paper-map.md").read_text(), re.MULTILINE)  # fmt: skip
    assert len(rows) > 15
    for file, name, test in rows:
        source = (ROOT / "src/dapperfl" / file).read_text()
        assert re.search(rf"^\s*(def|class) {name}\b", source, re.MULTILINE), (file, name)
        assert (ROOT / "tests" / test).exists(), test


@pytest.mark.parametrize("code", BLOCKS)
def test_code_in_the_documents_runs(code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "<document>", "exec"), {"__name__": "document"})


def test_the_table_on_the_front_page_is_the_recorded_demo():
    spec = importlib.util.spec_from_file_location("make_demo", ROOT / "docs/make_demo.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    summary = json.loads((ROOT / "results/demo/summary.json").read_text())
    text = (ROOT / "README.md").read_text()
    assert module.readme_with(text, summary) == text
    assert min(marks["last"] for marks in summary["domain_accuracy"].values()) >= 40
