"""rounds.jsonl: appended, read, cut."""

import json
from dataclasses import replace

import pytest

from dapperfl.core.masks import unpack
from dapperfl.core.messages import ClientCost
from dapperfl.errors import CheckpointError
from dapperfl.lab.experiment import run
from dapperfl.lab.folder import RunFolder, read_tensors
from dapperfl.lab.records import Absence, RoundLine, append, keep_until, load_records


def _line(number: int) -> RoundLine:
    return RoundLine(
        round=number,
        accuracy={"dark": 10.0 * number, "light": 1 / 3},
        mean=5.0 * number,
        loss=0.1,
        seconds=1.5,
        costs={0: ClientCost(1, 2, 3, 4, 5, 6), 11: ClientCost()},
        left_out=(Absence(3, "its loss was nan — “diverged”"),),
        kept={0.5: {"conv": "4:3"}, 0.8: {}},
    )


@pytest.fixture
def rounds(tmp_path):
    path = tmp_path / "rounds.jsonl"
    for number in (1, 2, 3):
        append(path, _line(number))
    return path


def test_what_is_appended_is_read_back_exactly(rounds):
    assert load_records(rounds.parent) == [_line(1), _line(2), _line(3)]


def test_each_line_is_strict_json_with_a_schema(rounds):
    append(rounds, replace(_line(4), loss=float("nan")))
    rows = [json.loads(text) for text in rounds.read_text().splitlines()]
    assert [row["schema"] for row in rows] == [1, 1, 1, 1]
    assert rows[3]["loss"] is None
    assert rows[0]["costs"]["0"]["bytes_up"] == 5


def test_what_devices_measured_is_kept(rounds):
    line = replace(_line(4), on_devices={"dark": 12.5})
    append(rounds, line)
    assert load_records(rounds.parent)[3] == line
    assert line.brief().on_devices == {"dark": 12.5}


def test_a_half_written_last_line_is_not_read(rounds):
    rounds.write_bytes(rounds.read_bytes()[:-40])
    assert load_records(rounds.parent) == [_line(1), _line(2)]


def test_cutting_leaves_exactly_the_rounds_of_the_checkpoint(rounds):
    whole = rounds.read_bytes()
    rounds.write_bytes(whole + whole[:30])
    assert keep_until(rounds, 2) == [_line(1), _line(2)]
    assert rounds.read_bytes() == b"".join(whole.splitlines(keepends=True)[:2])


def test_cutting_a_half_line_only_keeps_all_rounds(rounds):
    whole = rounds.read_bytes()
    rounds.write_bytes(whole + whole[:30])
    assert len(keep_until(rounds, 3)) == 3
    assert rounds.read_bytes() == whole


def test_without_a_checkpoint_everything_is_cut(rounds):
    assert keep_until(rounds, 0) == []
    assert rounds.read_bytes() == b""


def test_nothing_to_cut_is_fine(tmp_path):
    assert keep_until(tmp_path / "rounds.jsonl", 0) == []
    assert load_records(tmp_path) == []


def test_missing_rounds_are_an_error_that_names_the_file(rounds):
    with pytest.raises(CheckpointError, match=r"rounds.jsonl holds 3 rounds.*of round 5"):
        keep_until(rounds, 5)


def test_a_damaged_line_in_the_middle_is_named(rounds):
    first, second, third = rounds.read_bytes().splitlines(keepends=True)
    rounds.write_bytes(first + second[10:] + third)
    with pytest.raises(CheckpointError, match=r"rounds.jsonl, line 2 is damaged"):
        load_records(rounds.parent)


def test_a_repeated_round_is_an_error(rounds):
    append(rounds, _line(3))
    with pytest.raises(CheckpointError, match=r"line 4 is of round 3"):
        load_records(rounds.parent)


def test_lines_from_before_masks_were_kept_are_read(rounds):
    rows = [json.loads(text) for text in rounds.read_text().splitlines()]
    old = [{name: value for name, value in row.items() if name != "kept"} for row in rows]
    rounds.write_text("".join(f"{json.dumps(row)}\n" for row in old))
    assert load_records(rounds.parent) == [replace(_line(n), kept={}) for n in (1, 2, 3)]


def test_a_round_remembers_which_channels_each_level_kept(toy, tmp_path):
    # HeteroFL gives a level the same channels in every round: those of its final compact net.
    run(toy("method=heterofl", "rounds=2"), tmp_path)
    for line in load_records(tmp_path):
        assert sorted(line.kept) == [0.5, 0.8]
        for rho, masks in line.kept.items():
            kept = read_tensors(RunFolder(tmp_path).level(rho))[1]["kept"]
            assert masks
            for name, mask in masks.items():
                assert unpack(mask).channels() == kept[name]


def test_whole_nets_leave_no_masks(toy, tmp_path):
    run(toy("method=fedavg", "rounds=1"), tmp_path)
    assert load_records(tmp_path)[0].kept == {}
