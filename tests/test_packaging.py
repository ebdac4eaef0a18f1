"""The pins, the project file and the targets that a newcomer's first command relies on."""

import importlib.metadata
import re
import subprocess
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PINS = [
    line
    for line in (ROOT / "constraints.txt").read_text().splitlines()
    if line and not line.startswith("#")
]
# CUDA wheels come only where torch is built with them, and torch pins those itself.
CUDA = ("nvidia-", "cuda-", "triton")


def _dev_install() -> set[str]:
    """Walk the installed packages that dapperfl[dev] asks for, directly or not."""
    seen: set[tuple[str, str]] = set()
    queue = [("dapperfl", "dev")]
    while queue:
        name, extra = queue.pop()
        if (name, extra) in seen:
            continue
        seen.add((name, extra))
        for text in importlib.metadata.requires(name) or []:
            wanted = Requirement(text)
            if wanted.marker is None or wanted.marker.evaluate({"extra": extra}):
                queue += [(canonicalize_name(wanted.name), e) for e in wanted.extras or [""]]
    return {name for name, _ in seen if not name.startswith(CUDA)} - {"dapperfl"}


def test_every_pin_is_exact():
    assert all(re.fullmatch(r"[a-z0-9-]+==[0-9][0-9.]*", line) for line in PINS)
    assert "torch==2.13.0" in PINS


def test_every_package_of_the_dev_install_is_pinned():
    assert _dev_install() - {line.split("==")[0] for line in PINS} == set()


def test_pins_satisfy_the_ranges_of_the_project():
    pinned = dict(line.split("==") for line in PINS)
    extras = PROJECT["optional-dependencies"].values()
    wanted = [Requirement(t) for group in (PROJECT["dependencies"], *extras) for t in group]
    wanted = [r for r in wanted if r.name != "dapperfl"]
    assert [str(r) for r in wanted if pinned[canonicalize_name(r.name)] not in r.specifier] == []


@pytest.mark.parametrize("held", ["rich<15", "typer<0.21", "packaging<26", "protobuf<7"])
def test_pins_leave_room_for_flower(held):
    wanted = Requirement(held)
    assert dict(line.split("==") for line in PINS)[wanted.name] in wanted.specifier


def test_the_makefile_lists_its_targets():
    done = subprocess.run(["make", "-s"], cwd=ROOT, capture_output=True, text=True, check=True)
    targets = [line.split()[1] for line in done.stdout.splitlines()]
    assert {"demo", "test", "test-all", "lint", "clean"} <= set(targets)


def test_without_a_fitting_python_make_says_what_to_do(tmp_path):
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        (tmp_path / name).write_text((ROOT / name).read_text())
    done = subprocess.run(
        ["make", "PYTHONS=no-such-python", "test"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode != 0
    assert "needs Python 3.11 or 3.12" in done.stderr
    assert not (tmp_path / ".venv").exists()
