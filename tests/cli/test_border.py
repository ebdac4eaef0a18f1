"""What is printed while something goes on for long."""

import errno
from typing import NoReturn

import pytest

from dapperfl.cli.border import say


def test_a_full_disk_under_the_screen_ends_nothing_but_a_reader_that_has_gone_does(monkeypatch):
    def fails(text: str) -> NoReturn:
        raise OSError(reason, text)

    monkeypatch.setattr("typer.echo", fails)
    reason = errno.ENOSPC
    say("round 1")
    reason = errno.EPIPE
    with pytest.raises(BrokenPipeError):
        say("round 1")
