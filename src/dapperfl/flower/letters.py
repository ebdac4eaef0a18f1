"""Named bytes in the content of a Flower message, and back without trust.

Each part is an array of bytes, with a serialisation type of our own: Flower sends large ones in
pieces and equal ones once, and nothing but us ever reads what is in them.
"""

from collections.abc import Mapping

from flwr.app import Array, ArrayRecord, Error, RecordDict

from dapperfl.errors import MessageError
from dapperfl.runtime.facts import TEXT_LIMIT, as_text

RECORD = "dapperfl"
STYPE = "dapperfl.bytes"
REFUSED = "refused"  # the part of a reply that says why there is no other
REFUSED_LIMIT = 4 * TEXT_LIMIT  # bytes of its text


def part(data: bytes) -> Array:
    """Make bytes ready for messages; one that is in several of them is hashed once."""
    return Array("uint8", (len(data),), STYPE, data)


def letter(parts: Mapping[str, Array]) -> RecordDict:
    """Return the content of a message."""
    record = ArrayRecord()
    for name, array in parts.items():
        record[name] = array
    return RecordDict({RECORD: record})


def opened(content: RecordDict, limits: Mapping[str, int]) -> dict[str, bytes]:
    """Return the parts of a message.

    Args:
        content: What came.
        limits: The parts that must be there and the most bytes that each may have.

    Raises:
        MessageError: If a part is missing, too large or one too many.
    """
    record = content.get(RECORD)
    if len(content) != 1 or not isinstance(record, ArrayRecord):
        raise MessageError("the message is none of dapperfl's")
    if record.keys() != limits.keys():
        raise MessageError(f"the message has {len(record)} parts, expected {', '.join(limits)}")
    for name, array in record.items():
        if array.stype != STYPE:
            raise MessageError(f'the part "{name}" is no plain bytes')
        if len(array.data) > limits[name]:
            raise MessageError(
                f'the part "{name}" has {len(array.data)} bytes, expected at most {limits[name]}'
            )
    return {name: array.data for name, array in record.items()}


def refusal(reason: str) -> RecordDict:
    """Return the content of a reply that only says why."""
    return letter({REFUSED: part(as_text(reason).encode())})


def refused(content: RecordDict) -> str | None:
    """Return why a device does not answer; None if it does.

    Raises:
        MessageError: If the reason is no text.
    """
    record = content.get(RECORD)
    if not isinstance(record, ArrayRecord) or REFUSED not in record:
        return None
    try:
        reason = as_text(opened(content, {REFUSED: REFUSED_LIMIT})[REFUSED].decode())
        return reason.strip() or "the device does not say why"
    except UnicodeDecodeError as error:
        raise MessageError("the reason is no text") from error


def trouble(error: Error) -> str:
    """Say in one line what Flower reports instead of a reply."""
    reason = as_text((error.reason or "").strip()) or f"code {error.code}"
    return f"no reply: {reason}"
