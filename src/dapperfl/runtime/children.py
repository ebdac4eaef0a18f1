"""Processes of our own, which find modules where this one does.

Unlike multiprocessing, they do not import the main script: it may be a notebook, or start a run
without asking whether it is the main one.
"""

import subprocess
import sys
from collections.abc import Mapping

from dapperfl.environment import for_children


def start_child(
    target: str,
    handle: int,
    *,
    environment: Mapping[str, str] | None = None,
    stdout: int | None = None,
    stderr: int | None = None,
    new_session: bool = True,
    together: int | None = None,
) -> subprocess.Popen[bytes]:
    """Start a process that calls a function with the number of a file it inherits.

    Ctrl-C is for this process, which then ends its children.

    Args:
        target: The function, as `package.module:function`.
        handle: The file that both talk through.
        environment: What the child is told beside this process's environment.
        stdout: As for `subprocess.Popen`.
        stderr: As for `subprocess.Popen`.
        new_session: Whether it leads a session, and so can be ended with all it starts; if not,
            only a group of processes.
        together: How many such processes use a GPU at once; see `environment.for_children`.
    """
    module, _, function = target.partition(":")
    code = f"import sys; sys.path[:] = {sys.path!r}; from {module} import {function}"
    return subprocess.Popen(
        [sys.executable, "-u", "-c", f"{code}; {function}({handle})"],
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        bufsize=0,
        pass_fds=(handle,),
        env={**for_children(together), **(environment or {})},
        start_new_session=new_session,
        process_group=None if new_session else 0,
    )
