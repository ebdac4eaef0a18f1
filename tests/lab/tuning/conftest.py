"""What the tests of tuning share."""

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import event
from sqlalchemy.engine import Engine


def _without_sync(connection: Any, _: Any) -> None:
    connection.execute("PRAGMA synchronous = OFF")


@pytest.fixture(autouse=True)
def _hasty_databases() -> Iterator[None]:
    """Do not wait for the disk at every commit: no test cuts the power."""
    event.listen(Engine, "connect", _without_sync)
    yield
    event.remove(Engine, "connect", _without_sync)
