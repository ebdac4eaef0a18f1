"""The shelf of methods: one file each, and the file's name is the method's name."""

import importlib
import inspect
import pkgutil
from dataclasses import MISSING, Field, fields

from dapperfl.errors import ConfigError
from dapperfl.methods.base import Method
from dapperfl.naming import did_you_mean, load_object


def names() -> list[str]:
    """List the methods of the package."""
    return sorted(info.name for info in pkgutil.iter_modules(__path__) if info.name != "base")


def load(name: str) -> type[Method]:
    """Return a method's class, by name or, from outside the package, as `package.module:Class`."""
    if ":" in name:
        found = load_object(name)
        if not _is_method(found):
            raise ConfigError(f'"{name}" is not a subclass of dapperfl.methods.base.Method')
        method: type[Method] = found
        _check_decorated(name, method)
        _check_fields(name, method)
        return method
    if name not in names():
        raise ConfigError(f'unknown method "{name}"{did_you_mean(name, names())}')
    module = importlib.import_module(f"{__name__}.{name}")
    own = [v for v in vars(module).values() if _is_method(v) and v.__module__ == module.__name__]
    if len(own) != 1:
        raise ConfigError(f"{module.__name__} must define one Method, not {len(own)}")
    method = own[0]
    return method


def _check_fields(name: str, kind: type[Method]) -> None:
    """Refuse fields without a default, and those whose keys mean something else."""
    for each in fields(kind):
        if each.name in ("name", "preset"):
            raise ConfigError(
                f'"{name}": the field {kind.__name__}.{each.name} could not be told from the '
                f"key method.{each.name}; call it something else"
            )
        if each.default is MISSING and each.default_factory is MISSING:
            raise ConfigError(
                f'"{name}": the field {kind.__name__}.{each.name} has no default; write '
                f'{each.name}: … = setting(VALUE, "what it is for")'
            )


def _check_decorated(name: str, kind: type[Method]) -> None:
    """Refuse fields that nobody reads: a class without its decorator has those of its parents."""
    known = {each.name for each in fields(kind)}
    for part in kind.__mro__:
        own = {} if "__dataclass_fields__" in vars(part) else vars(part)
        lost = [key for key, value in own.items() if key in known or isinstance(value, Field)]
        if lost:
            raise ConfigError(
                f'"{name}": {part.__name__}.{lost[0]} has no effect; write '
                f"@dataclass(frozen=True, kw_only=True) above class {part.__name__}"
            )


def _is_method(value: object) -> bool:
    return inspect.isclass(value) and issubclass(value, Method)
