"""Nets by name: the factories each family file lists in its ``__all__``, or a user's own.

Adding an architecture is adding one file to this folder; nothing else is edited.
"""

import importlib
import inspect
import logging
import pkgutil
from collections.abc import Callable, Mapping

from torch import nn

from dapperfl.errors import ConfigError
from dapperfl.naming import did_you_mean, load_object, users_code

__all__ = ["build", "names"]

Factory = Callable[..., nn.Module]
logger = logging.getLogger(__name__)


def names() -> list[str]:
    """List the nets that build() knows without a module path."""
    return sorted(_bundled())


def build(
    name: str, *, num_classes: int, in_channels: int = 3, width: int | None = None
) -> nn.Module:
    """Build a net with torch's default initialisation, drawn from torch's global generator.

    Args:
        name: One of names(), or "package.module:factory" for a class or function of one's own. Of
            the three settings it is passed those its signature names.
        num_classes: How many logits the net returns.
        in_channels: Channels of the images.
        width: Channels of the first layer; None for the factory's own default.

    Raises:
        ConfigError: The name is unknown, or what it names does not build a module.
    """
    settings = {"num_classes": num_classes, "in_channels": in_channels}
    if width is not None:
        settings["width"] = width
    for key, value in settings.items():
        if value < 1:
            raise ConfigError(f'net "{name}": {key} is {value}; it must be at least 1')
    factory = _load(name) if ":" in name else _find(name)
    accepted = _accepted(name, factory, settings)
    with users_code(f'net "{name}" cannot be built'):
        net = factory(**accepted)
    if not isinstance(net, nn.Module):
        raise ConfigError(
            f'net "{name}" returned a {type(net).__name__}, not a torch.nn.Module; '
            "name a class or function that builds one"
        )
    return net


def _bundled() -> dict[str, Factory]:
    families = (
        importlib.import_module(f"{__name__}.{module.name}")
        for module in pkgutil.iter_modules(__path__)
    )
    return {name: getattr(family, name) for family in families for name in family.__all__}


def _find(name: str) -> Factory:
    known = _bundled()
    if name in known:
        return known[name]
    raise ConfigError(
        f'unknown net "{name}"{did_you_mean(name, known)} '
        '(a net of your own is "package.module:factory")'
    )


def _load(name: str) -> Factory:
    factory: Factory = load_object(name)
    if isinstance(factory, nn.Module) or not callable(factory):
        raise ConfigError(
            f'net "{name}" is a {type(factory).__name__}; '
            "name a class or function that builds the net"
        )
    return factory


def _accepted(name: str, factory: Factory, settings: Mapping[str, int]) -> dict[str, int]:
    """Choose the settings a factory takes, and refuse one that needs what we do not have."""
    parameters = inspect.signature(factory).parameters.values()
    accepted = {
        p.name: settings[p.name]
        for p in parameters
        if p.name in settings and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
    }
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        # Only this one is a name all libraries agree on; the others would be refused further in.
        accepted["num_classes"] = settings["num_classes"]
    needed = [
        p.name
        for p in parameters
        if p.default is p.empty
        and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
        and p.name not in accepted
    ]
    if needed:
        raise ConfigError(
            f'net "{name}" also needs {", ".join(needed)}; give these defaults '
            "(num_classes, in_channels and net.width are passed by name)"
        )
    if "width" in settings and "width" not in accepted:
        logger.warning('net "%s" takes no width; %d is not used', name, settings["width"])
    return accepted
