"""What is compared, as people type it.

    fedavg                                  as the config file has it, else its preset `default`
    dapperfl:paper                          a preset
    dapperfl:paper{method.gamma=0}          with settings of its own, as `--set` takes them
    w/o DAR=dapperfl:paper{method.gamma=0}  with a name for the table
    mypackage.mine:Mine:preset              somebody's own method; `mine:Mine` if it is mine.py

Commas separate variants, and settings within braces.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from dapperfl import methods
from dapperfl.errors import ConfigError
from dapperfl.lab.config import Config
from dapperfl.lab.resolve import resolve

_OPENING, _CLOSING = "{[", "}]"
# What the command decides by itself; a second opinion would be ignored or make two rows one.
_DECIDED = {
    "seed": "--seeds",
    "method": "--methods",
    "method.name": "--methods",
    "method.preset": "--methods",
}


@dataclass(frozen=True)
class Variant:
    """A method with a preset and settings of its own: one line of a table."""

    name: str
    preset: str | None = None  # None: what the config file says of this method, else "default"
    settings: tuple[str, ...] = ()  # key=value
    label: str | None = None

    def resolve(self, path: Path | None, overrides: Iterable[str] = ()) -> Config:
        """Return its config: the file's, then what is set for all, then its own settings."""
        chosen = [f"method.preset={self.preset}"] if self.preset else []
        return resolve(path, [f"method={self.name}", *chosen, *overrides, *self.settings])


def parse_variants(text: str) -> list[Variant]:
    """Read a comma-separated list of variants.

    Raises:
        ConfigError: the text is empty, or does not follow the grammar above.
    """
    return [_variant(part) for part in _split(text)]


def parse_seeds(text: str) -> list[int]:
    """Read a comma-separated list of seeds, each one once."""
    try:
        seeds = [int(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"--seeds {text}: expected whole numbers, such as 0,1,2") from None
    if len(set(seeds)) < len(seeds) or min(seeds) < 0:
        raise ConfigError(f"--seeds {text}: expected different numbers, none below 0")
    return seeds


def check_settings(settings: Iterable[str], place: str) -> None:
    """Refuse settings that the command decides by itself."""
    for text in settings:
        key, equals, _ = text.partition("=")
        if not equals:
            raise ConfigError(f"{place}: expected key=value instead of {text!r}")
        if key.strip() in _DECIDED:
            raise ConfigError(f"{place}: {key.strip()} is chosen by {_DECIDED[key.strip()]}")


def _variant(text: str) -> Variant:
    head, brace, rest = text.partition("{")
    if brace and not rest.endswith("}"):
        raise ConfigError(f'--methods: "{text}" has something behind its braces')
    label, equals, method = head.rpartition("=")
    first, *more = method.strip().split(":")
    if more and _is_module(first):  # module:Class
        first, *more = f"{first}:{more[0]}", *more[1:]
    if not all((first, *more)) or len(more) > 1 or (equals and not label.strip()):
        raise ConfigError(
            f'--methods: "{text}" is no variant; write name, name:preset or '
            "label=name:preset{key=value,...}"
        )
    settings = tuple(_split(rest[:-1])) if brace else ()
    check_settings(settings, f'--methods "{text}"')
    return Variant(first, more[0] if more else None, settings, label.strip() or None)


def _is_module(name: str) -> bool:
    """Tell a module of somebody's own from a method; `mine` alone may be either."""
    return "." in name or (name not in methods.names() and _is_importable(name))


def _is_importable(name: str) -> bool:
    try:
        return name.isidentifier() and find_spec(name) is not None
    except ValueError:  # __main__, which is no module of anybody's own
        return False


def _split(text: str) -> list[str]:
    parts = [part.strip() for part in _parts(text)]
    if not all(parts):
        raise ConfigError(f'"{text}": there is nothing before or behind a comma')
    return parts


def _parts(text: str) -> Iterator[str]:
    """Yield what stands between commas that are in no bracket."""
    depth, part = 0, ""
    for letter in text:
        depth += (letter in _OPENING) - (letter in _CLOSING)
        if depth < 0:
            break
        if letter == "," and depth == 0:
            yield part
            part = ""
        else:
            part += letter
    if depth != 0:
        raise ConfigError(f'"{text}": a bracket is not closed, or was never opened')
    yield part
