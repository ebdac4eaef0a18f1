"""Reading on in a growing file."""

from dapperfl.flower.tail import Tail


def test_lines_are_handed_out_once_and_when_they_are_complete(tmp_path):
    path = tmp_path / "log"
    tail = Tail(path)
    assert tail.lines() == []
    path.write_bytes(b"one\ntw")
    assert tail.lines() == ["one"]
    assert tail.lines() == []
    with path.open("ab") as file:
        file.write(b"o\n\nthr\xffee\n")
    assert tail.lines() == ["two", "", "thr\ufffdee"]


def test_what_was_there_before_is_left_out_unless_asked_for(tmp_path):
    path = tmp_path / "log"
    path.write_text("old\n")
    assert Tail(path).lines() == []
    assert Tail(path, 0).lines() == ["old"]


def test_a_file_that_was_emptied_is_read_from_its_start(tmp_path):
    path = tmp_path / "log"
    path.write_text("a long line of before\n")
    tail = Tail(path)
    path.write_text("new\n")
    assert tail.lines() == ["new"]
    path.unlink()
    assert tail.lines() == []
    path.write_text("anew\n")
    assert tail.lines() == ["anew"]
