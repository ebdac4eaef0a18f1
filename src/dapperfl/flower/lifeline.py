"""A process that ends with the one that started it, however that one ends.

The parent holds the other end of the child's standard input. It is closed when the parent is gone,
even if the parent was killed and could tell nobody.
"""

import os
import signal
import sys
import threading


def end_with_parent() -> None:
    """Watch the standard input; when it ends, kill the whole group of this process."""
    threading.Thread(target=_watch, name="lifeline", daemon=True).start()


def _watch() -> None:
    while os.read(sys.stdin.fileno(), 1):
        pass
    os.killpg(os.getpgrp(), signal.SIGKILL)
