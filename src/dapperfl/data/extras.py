"""The packages that only drawing and the embedded benchmark need: asked for when first used."""

from collections.abc import Iterator
from contextlib import contextmanager

from dapperfl.errors import DataError


@contextmanager
def demo_packages(purpose: str) -> Iterator[None]:
    """Turn a missing optional package into an error that says how to install it.

    Args:
        purpose: what needs the package, as the subject of the message.
    """
    try:
        yield
    except ImportError as error:
        raise DataError(
            f"{purpose} needs a package that is not installed ({error.name or error}); "
            'run: pip install "dapperfl[demo]"'
        ) from error
