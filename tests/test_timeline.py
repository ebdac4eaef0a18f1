import json

import pytest

pytest.importorskip("matplotlib")

from benchmarks.timeline import binned, draw, kernels_of, shares


def event(stream: int, begin: float, length: float, kind: str = "kernel") -> dict[str, object]:
    return {"cat": kind, "ts": begin, "dur": length, "args": {"stream": stream}}


def test_overlapping_spans_count_once():
    # [0.5, 1.5] and [1.0, 2.25]: half of the first, all of the second, a quarter of the third
    assert shares([(1.0, 2.25), (0.5, 1.5)], 4) == [0.5, 1.0, 0.25, 0.0]


def test_streams_come_in_the_order_they_begin():
    events = [
        event(7, 2000, 500),
        event(3, 1000, 1000),
        event(7, 1500, 250),
        {"cat": "cpu_op", "ts": 0, "dur": 9e6},
    ]
    rows = binned(kernels_of(events))
    assert rows == {
        "any": [1.0, 0.5],
        "stream 0": [1.0, 0.0],  # from 1000 µs on, which is zero
        "stream 1": [0.25, 0.5],
    }


def test_a_recorded_round_can_be_drawn(tmp_path):
    source, picture = tmp_path / "round.json", tmp_path / "round.png"
    rows = binned(kernels_of([event(1, 0, 2500), event(2, 1000, 700, "gpu_memcpy")]))
    source.write_text(json.dumps({"config": "x.toml", "round_seconds": 0.002, "busy": rows}))
    draw(source, picture)
    assert picture.read_bytes().startswith(b"\x89PNG")
