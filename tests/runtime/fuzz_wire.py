"""Coverage-guided noise for everything that reads bytes from elsewhere; needs `atheris`.

    python -m tests.runtime.fuzz_wire CORPUS -runs=100000 -seed=1

The first byte of an input says which reader gets the rest. Whatever comes, a reader returns a
message or raises `MessageError`; anything else ends the program with a report. Good messages are
put into the folder CORPUS first, so that noise starts from them.
"""

import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["dapperfl.runtime", "dapperfl.flower.terms"]):
    from tests.flower.test_terms import TERMS
    from tests.runtime.letters import (
        ASKED,
        CODEC,
        DEVICE,
        LEFT_OUT,
        MODEL,
        MOMENTS,
        PARCEL,
        TASK,
        UPDATE,
    )

    from dapperfl.errors import MessageError
    from dapperfl.flower.terms import read_terms
    from dapperfl.runtime.wire import Parcel

READERS: tuple[Callable[[bytes], object], ...] = (
    lambda data: CODEC.decode_reply(data, TASK),
    lambda data: CODEC.decode_reply(data, ASKED),
    lambda data: CODEC.decode_task(Parcel(data, MODEL)),
    lambda data: CODEC.decode_task(Parcel(PARCEL.task, data)),
    CODEC.decode_device,
    read_terms,
)
GOOD: tuple[tuple[int, bytes], ...] = (
    (0, UPDATE),
    (0, LEFT_OUT),
    (1, MOMENTS),
    (2, PARCEL.task),
    (3, MODEL),
    (4, CODEC.encode_device(DEVICE)),
    (5, TERMS.encode()),
)


def read(data: bytes) -> None:
    """Give an input to its reader."""
    if data:
        with suppress(MessageError):
            READERS[data[0] % len(READERS)](data[1:])


def main() -> None:
    """Write the good messages, see that they are read, and begin."""
    corpus = Path(sys.argv[1])
    corpus.mkdir(parents=True, exist_ok=True)
    for number, (reader, data) in enumerate(GOOD):
        READERS[reader](data)
        (corpus / f"good-{number}").write_bytes(bytes([reader]) + data)
    atheris.Setup([*sys.argv, f"-max_len={2 * max(len(data) for _, data in GOOD)}"], read)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
