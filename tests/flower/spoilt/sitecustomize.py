"""Makes a device dishonest: Python imports this first where its folder is on PYTHONPATH.

The product has no hook for it, so the ClientApp is changed right after it has been imported.
"""

import importlib.util
import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

NAME = "dapperfl.flower.client_app"


class Spoiler(MetaPathFinder):
    """Finds the ClientApp as usual, and spoils it."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if name != NAME:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.loader is not None
        load = spec.loader.exec_module

        def load_and_spoil(module: ModuleType) -> None:
            load(module)
            from tests.flower.garbage import spoil

            spoil(module)

        spec.loader.exec_module = load_and_spoil  # type: ignore[method-assign]
        return spec


sys.meta_path.insert(0, Spoiler())
