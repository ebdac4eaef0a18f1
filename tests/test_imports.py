"""Imports go up the list of layers only, and heavy packages stay in their rooms."""

import ast
import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import dapperfl

ROOT = Path(dapperfl.__file__).parent
OURS = {  # layer: what of ours it may import besides itself and what all may (`anyone`, below)
    "errors": (),
    "environment": (),
    "naming": (),
    "settings": (),
    "core": (),
    "nets": ("core",),
    "data": ("core",),
    "methods": ("core",),
    "runtime": ("core", "methods.base"),
    "sim": ("core", "data", "methods.base", "runtime"),
    "lab": ("core", "nets", "data", "methods", "runtime", "sim"),
    "flower": ("core", "methods", "runtime", "data", "lab", "sim.loop", "sim.simulator"),
    "cli": ("lab", "data", "flower"),
    "__main__": ("cli",),
    "__init__": ("core", "nets", "data", "methods", "runtime", "sim", "lab"),
}
THEIRS = {  # layer: the packages from elsewhere it may import
    "core": {"torch"},
    "nets": {"torch"},
    "data": {"torch", "numpy", "PIL", "sklearn", "matplotlib"},
    "methods": {"torch"},
    "runtime": {"torch", "safetensors"},
    "sim": {"torch"},
    "lab": {
        *("torch", "numpy", "safetensors", "tomli_w", "rich", "matplotlib", "PIL"),
        *("optuna", "sqlalchemy"),  # lab/tuning only
    },
    "flower": {"torch", "safetensors", "flwr", "cryptography"},
    "cli": {"typer", "click", "rich"},
}
LAZY = {"PIL", "sklearn", "matplotlib", "optuna", "sqlalchemy"}  # imported inside functions only
FILES = sorted(ROOT.rglob("*.py"))


def _targets(node: ast.AST, package: str) -> Iterator[str]:
    """Yield the dotted name of everything one statement imports."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        module = "." * node.level + (node.module or "")
        base = importlib.util.resolve_name(module, package)
        yield from (f"{base}.{alias.name}" for alias in node.names)


def _violations(source: str, path: Path) -> list[str]:
    """Name every import in a file, given by its path in the package, that its layer may not do."""
    layer = path.parts[0].removesuffix(".py")
    assert layer in OURS, f"{path} is in no known layer; give {layer} a row in this file"
    package = ".".join(["dapperfl", *path.parent.parts])
    anyone = ("environment", "errors", "naming", "settings", "__version__", layer)
    ours = tuple(f"dapperfl.{name}" for name in (*OURS[layer], *anyone))
    tree = ast.parse(source)
    found = []
    for node in ast.walk(tree):
        for target in _targets(node, package):
            top = target.split(".")[0]
            if top == "dapperfl":
                allowed = any(f"{target}.".startswith(f"{name}.") for name in ours)
            else:
                allowed = top in sys.stdlib_module_names or top in THEIRS.get(layer, ())
            if not allowed or (top in LAZY and node in tree.body):
                found.append(f"{path}:{getattr(node, 'lineno', 0)} imports {target}")
    return found


@pytest.mark.parametrize("file", FILES, ids=[str(f.relative_to(ROOT)) for f in FILES])
def test_each_module_imports_only_what_its_layer_may(file):
    assert _violations(file.read_text(), file.relative_to(ROOT)) == []


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("core/state.py", "import numpy as np"),
        ("core/state.py", "def f():\n    from dapperfl.nets import build"),
        ("methods/moon.py", "from dapperfl import runtime"),
        ("methods/moon.py", "from ..data import partition"),
        ("runtime/training.py", "from dapperfl.methods.dapperfl import DapperFL"),
        ("runtime/training.py", "from dapperfl.methods import load"),
        ("sim/loop.py", "import dapperfl.lab.config"),
        ("lab/config.py", "from dapperfl import cli"),
        ("lab/config.py", "import flwr.app"),
        ("lab/config.py", "import typer"),
        ("data/partition.py", "from PIL import Image"),
    ],
)
def test_a_wrong_import_is_found(path, source):
    assert len(_violations(source, Path(path))) == 1


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("runtime/training.py", "import torch\nfrom dapperfl.methods.base import Method"),
        ("runtime/training.py", "from dapperfl.methods import base"),
        ("methods/moon.py", "from .base import Method\nfrom dapperfl.errors import ConfigError"),
        ("data/benchmarks/digits.py", "def load():\n    from PIL import Image"),
    ],
)
def test_a_right_import_is_allowed(path, source):
    assert _violations(source, Path(path)) == []


def test_importing_the_package_needs_no_heavy_extras():
    code = "import dapperfl, sys; print(*{m.split('.')[0] for m in sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "dapperfl" in loaded
    assert loaded.isdisjoint(
        {"matplotlib", "sklearn", "scipy", "PIL", "typer", "rich", "flwr", "optuna"}
    )
