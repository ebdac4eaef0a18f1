import os
import subprocess
import sys

import pytest

from dapperfl.runtime.children import start_child

PROBE = """
import os
def report(handle):
    words = [os.environ["TOLD"], str(os.getsid(0) == os.getpid()), str(os.getpgrp() == os.getpid())]
    os.write(handle, " ".join(words).encode())
"""


@pytest.mark.parametrize(("leads", "session"), [("True", True), ("False", False)])
def test_a_child_finds_our_modules_and_talks_through_the_file(
    tmp_path, monkeypatch, leads, session
):
    (tmp_path / "probe_of_children.py").write_text(PROBE)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    ours, theirs = os.pipe()
    child = start_child(
        "probe_of_children:report", theirs, environment={"TOLD": "hello"}, new_session=session
    )
    os.close(theirs)
    with os.fdopen(ours) as file:
        assert file.read() == f"hello {leads} True"  # a group of its own in either case
    assert child.wait() == 0


def test_its_words_can_be_caught():
    with start_child("no_such_module:f", 0, stderr=subprocess.PIPE) as child:
        assert child.stderr is not None
        assert b"no_such_module" in child.stderr.read()
    assert child.returncode == 1
