"""What the package logs, passed on to somebody: the terminal, or a file."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def heard(handler: logging.Handler) -> Iterator[None]:
    """Give a handler all that is logged, plain notes included, and close it afterwards."""
    log = logging.getLogger("dapperfl")
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(level)
        handler.close()
