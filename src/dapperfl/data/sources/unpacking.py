"""Reading files that may be packed with gzip or bzip2, never more of them than was asked for.

What a file is packed with is told by its first bytes: browsers unpack some downloads and keep the
name.
"""

import bz2
import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, cast

from dapperfl.errors import DataError

TEXT_LIMIT = 64 * 2**20  # bytes; the largest official text file has about 20 million
_CHUNK = 2**20


@contextmanager
def unpacked(path: Path) -> Iterator[IO[bytes]]:
    """Open a file for reading its unpacked bytes; whatever is wrong with it names the file."""
    try:
        with path.open("rb") as file:
            head = file.read(3)
            file.seek(0)
            if head[:2] == b"\x1f\x8b":
                yield cast(IO[bytes], gzip.GzipFile(fileobj=file))
            elif head == b"BZh":
                yield bz2.BZ2File(file)
            else:
                yield file
    except (EOFError, OSError, ValueError, zlib.error) as error:
        raise DataError(
            f"{path} cannot be read ({error}); it is damaged or was cut off: get it again"
        ) from None


def read_up_to(stream: IO[bytes], size: int) -> bytes:
    """Read so many bytes or all there are; memory is taken as they come, not as was announced."""
    chunks: list[bytes] = []
    while size > 0 and (chunk := stream.read(min(size, _CHUNK))):
        chunks.append(chunk)
        size -= len(chunk)
    return b"".join(chunks)


def read_text(path: Path) -> str:
    """Read a whole text file, packed or not, unless it is longer than any official one."""
    with unpacked(path) as stream:
        data = read_up_to(stream, TEXT_LIMIT + 1)
    if len(data) > TEXT_LIMIT:
        raise DataError(
            f"{path} unpacks to more than {TEXT_LIMIT:,} bytes; this is not the data set"
        )
    try:
        return data.decode("ascii")
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not a text file (byte {error.start} is no letter)") from None
