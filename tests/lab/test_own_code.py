"""Files of somebody's own modules are marked, and known again."""

import sys
import types

from dapperfl.lab.own_code import changed_code, named, own_code
from dapperfl.lab.resolve import read_toml
from tests.lab.conftest import edit, interrupt


def test_every_module_that_a_config_names_is_marked_once(toy, own_module):
    mine = own_module.stem
    assert list(own_code(toy("data=minidigits"))) == []
    assert list(own_code(toy())) == ["source of tests.lab.toy_world"]
    names = (f"method={mine}:Mine", f"net={mine}:convnet", f"data={mine}:load")
    for name in names:
        assert f"source of {mine}" in own_code(toy(name))
    assert list(own_code(toy(*names))) == [f"source of {mine}"]


def test_only_files_whose_text_differs_have_changed(toy, own_module):
    config = toy(f"method={own_module.stem}:Mine")
    then = own_code(config)
    own_module.touch()
    assert changed_code(config, then) == []
    edit(own_module)
    assert changed_code(config, then) == [own_module]
    assert changed_code(config, {}) == []  # a run from before there were marks
    own_module.unlink()
    assert changed_code(config, then) == []


def test_what_has_no_file_or_cannot_be_found_has_no_mark(toy, monkeypatch):
    made = types.ModuleType("made_up_here")
    monkeypatch.setitem(sys.modules, "made_up_here", made)
    broken = types.ModuleType("broken_here")
    monkeypatch.setitem(sys.modules, "broken_here", broken)
    for name in ("made_up_here:load", "broken_here.more:load", "nowhere:load", "math:sin"):
        assert own_code(toy(f"data={name}")).keys() <= {"source of math"}


def test_a_run_says_what_code_it_was_started_under(toy, tmp_path):
    config = toy("rounds=1")
    interrupt(config, tmp_path / "run", 0)
    assert own_code(config).items() <= read_toml(tmp_path / "run" / "config.toml")["meta"].items()


def test_files_are_named_in_one_sentence(tmp_path):
    assert named([tmp_path / "a.py"]) == "a.py has changed"
    assert named([tmp_path / "a.py", tmp_path / "b.py"]) == "a.py, b.py have changed"
