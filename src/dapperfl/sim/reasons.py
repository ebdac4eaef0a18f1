"""Why a client takes no part in a round, in a line that leads to where it went wrong."""

import logging
import sysconfig
import traceback
from pathlib import Path

from dapperfl.core.messages import Device, LeftOut
from dapperfl.errors import DapperFLError, is_of_memory

logger = logging.getLogger(__name__)
_INSTALLED = [sysconfig.get_path(part) for part in ("stdlib", "platstdlib", "purelib", "platlib")]
# Code that is not of those who wrote a method, a net or data: ours, and what is installed.
_NOT_THEIRS = (str(Path(__file__).parents[1]), *_INSTALLED, "<")


def left_out(device: Device, error: Exception) -> LeftOut:
    """Say why a client does not take part.

    A lack of memory is this machine's trouble, and no reason to leave a client out: it is raised,
    or a result would depend on what else the machine does.
    """
    if is_of_memory(error):
        raise error
    logger.debug("device %d failed", device.id, exc_info=error)
    place = "" if isinstance(error, DapperFLError) else where(error)
    return LeftOut(device, f"{told(error)} ({place})" if place else told(error))


def told(error: Exception) -> str:
    """Return an error in a line; a single word, as of a missing key, is little without its kind."""
    first = str(error).splitlines()[0] if str(error) else ""
    if " " in first:
        return first
    kind = type(error).__name__
    return f"{kind}: {first}" if first else kind


def where(error: Exception) -> str:
    """Name the last line of somebody's own code that an error came through, if it did."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not frame.filename.startswith(_NOT_THEIRS):
            return f"{Path(frame.filename).name}:{frame.lineno} in {frame.name}"
    return ""
