"""The smallest PNG writer that a heat map needs."""

import struct
import zlib
from base64 import b64encode
from collections.abc import Sequence

Pixel = tuple[int, int, int, int]  # red, green, blue, opacity


def png(rows: Sequence[Sequence[Pixel]]) -> bytes:
    """Return a picture with 8 bits a channel, from its rows of pixels."""
    header = struct.pack(">IIBBBBB", len(rows[0]), len(rows), 8, 6, 0, 0, 0)  # 6: RGBA
    # Each row begins with the number of its filter; 0 is none.
    data = b"".join(b"\0" + bytes(value for pixel in row for value in pixel) for row in rows)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(data)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, content) for kind, content in chunks)


def _chunk(kind: bytes, content: bytes) -> bytes:
    check = zlib.crc32(kind + content)
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", check)


def data_uri(picture: bytes) -> str:
    """Return a picture as an address that holds it."""
    return f"data:image/png;base64,{b64encode(picture).decode()}"
