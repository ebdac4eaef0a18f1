import logging

import pytest

from dapperfl.lab.notes import heard


class Ear(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.words: list[str] = []
        self.closed = False

    def emit(self, record: logging.LogRecord) -> None:
        self.words.append(record.getMessage())

    def close(self) -> None:
        self.closed = True
        super().close()


def say_and_fail(ear: Ear) -> None:
    with heard(ear):
        logging.getLogger("dapperfl.sim").info("a note")
        logging.getLogger("dapperfl.sim").debug("a detail")
        raise ValueError("over")


def test_notes_are_heard_until_the_end_whatever_ends_it():
    log, ear = logging.getLogger("dapperfl"), Ear()
    before, level = list(log.handlers), log.level
    with pytest.raises(ValueError, match="over"):
        say_and_fail(ear)
    logging.getLogger("dapperfl.sim").warning("too late")
    assert ear.words == ["a note"]
    assert ear.closed
    assert (log.handlers, log.level) == (before, level)
