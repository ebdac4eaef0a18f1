from pathlib import Path

import pytest

from dapperfl.errors import ConfigError
from dapperfl.naming import load_object


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("x = undefined", "NameError: name 'undefined' is not defined"),
        ("x = {}['k']", "KeyError: 'k'"),
        ("open('/no/such/file')", "FileNotFoundError: .*/no/such/file"),
        ("import sys; sys.exit('usage: mine')", "SystemExit: usage: mine"),
        ("assert False", "AssertionError;"),
        ("import no_such_package", "No module named 'no_such_package'; it must be package"),
        ("def load(root) return 1", r"expected ':' .*; it must be package"),
    ],
)
def test_a_module_that_cannot_be_imported_is_one_line(
    code: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    name = f"made_by_{tmp_path.name}"  # no other test has a module of this name
    (tmp_path / f"{name}.py").write_text(code)
    with pytest.raises(ConfigError, match=rf'^cannot load "{name}:load": {said}'):
        load_object(f"{name}:load")
