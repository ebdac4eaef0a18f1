"""Curves, points and whiskers stand where the numbers say."""

import re

import pytest
from tests.lab.made_runs import write_run

from dapperfl.lab.gather import load_runs
from dapperfl.lab.groups import grouped
from dapperfl.lab.report.curves import learning_curves
from dapperfl.lab.report.finals import final_accuracy
from dapperfl.lab.report.frame import LEFT, RIGHT, WIDTH
from dapperfl.lab.report.pens import Pen, legend
from dapperfl.lab.report.prices import prices

DOMAINS = ("dark", "light")


@pytest.fixture
def groups(tmp_path):
    write_run(tmp_path / "a0", dark=(0, 0, 50), light=(0, 0, 50))
    write_run(tmp_path / "a1", "seed=1", dark=(0, 0, 100), light=(0, 0, 100))
    write_run(tmp_path / "b", "method=fedavg", dark=(0, 25, 50), light=(0, 25, 50))
    return grouped(load_runs([tmp_path]))


def _figures(markup: str) -> dict[str, str]:
    found = re.findall(r"<figure><figcaption>(.*?)</figcaption>(.*?)</figure>", markup)
    return dict(found)


def _path(kind: str, figure: str) -> list[list[tuple[float, float]]]:
    """Return the points of every path of a kind."""
    paths = re.findall(rf'class="{kind}" d="M([^"Z]+)', figure)
    return [
        [(float(x), float(y)) for x, y in (point.split() for point in path.split("L"))]
        for path in paths
    ]


def test_there_is_a_panel_for_the_mean_and_one_for_each_domain(groups):
    panels = _figures(learning_curves(groups, DOMAINS))
    assert list(panels) == ["global (mean over domains)", "dark", "light"]
    for panel in panels.values():
        assert ">round</text>" in panel
        assert ">accuracy [%]</text>" in panel


def test_a_line_goes_through_the_means_and_its_band_from_lowest_to_highest_seed(groups):
    panel = _figures(learning_curves(groups, DOMAINS))["dark"]
    mean, other = _path("line", panel)
    assert [x for x, _ in mean] == [LEFT, (LEFT + WIDTH - RIGHT) / 2, WIDTH - RIGHT]
    bottom, top = mean[0][1], other[0][1] - 2 * (other[0][1] - other[2][1])  # of 0 and 100 %
    assert mean[2][1] == pytest.approx(bottom + 0.75 * (top - bottom), abs=0.02)
    assert other[1][1] == pytest.approx(bottom + 0.25 * (top - bottom), abs=0.02)
    [band] = _path("band", panel)  # a single seed has none
    assert [y for _, y in band[2:4]] == pytest.approx([(bottom + top) / 2, top], abs=0.02)


def test_long_runs_have_few_dots_and_the_last_round_has_one(tmp_path):
    numbers = [float(number % 50) for number in range(95)]
    write_run(tmp_path / "long", dark=numbers, light=numbers)
    panel = _figures(learning_curves(grouped(load_runs([tmp_path])), DOMAINS))["dark"]
    rounds = re.findall(r"<title>round (\d+):", panel)
    assert rounds[0] == "95"
    assert len(rounds) == 10


def test_a_run_of_one_round_can_be_drawn(tmp_path):
    write_run(tmp_path / "short", dark=(100,), light=(100,))
    groups = grouped(load_runs([tmp_path]))
    assert "round 1: 100.0 %" in learning_curves(groups, DOMAINS)
    assert "100.0" in final_accuracy(groups, DOMAINS)


def test_final_accuracies_are_written_with_their_range(groups):
    drawn = final_accuracy(groups, DOMAINS)
    assert re.findall(r'class="word"[^>]*>([\d.]+)<', drawn) == ["25.0", "25.0"] * 3
    low, high = _path("whisker", drawn)[0]
    assert low[0] < high[0]  # 50 / 3 and 100 / 3
    alone = _path("whisker", drawn)[1]
    assert alone[0] == alone[1]


def test_accuracy_is_drawn_against_bytes_and_the_levels_against_parameters(groups):
    upload, levels = _figures(prices(groups)).values()
    assert "dapperfl:default: 25.0 %, 101<" in upload
    assert len(_path("line", levels)) == 2
    sizes = [x for x, _ in _path("line", levels)[0]]  # 1000, 500 and 200 parameters
    assert (sizes[0] - LEFT) / (sizes[1] - LEFT) == pytest.approx(2, abs=0.01)
    assert "fedavg:default, ρ\u00a0=\u00a00.8: 42.0 %, 200<" in levels


def test_unfinished_runs_have_no_levels_to_draw(tmp_path):
    write_run(tmp_path / "run", finished=False)
    assert len(_figures(prices(grouped(load_runs([tmp_path]))))) == 1


def test_groups_differ_in_more_than_colour(groups):
    looks = set()
    for index in range(28):
        dashes = re.search(r'dasharray="([^"]+)', Pen(index).line([(0, 0), (1, 1)]))
        shape = re.search(r' d="([^"]+)', Pen(index).dot((0, 0)))
        assert shape
        looks.add((dashes and dashes[1], shape[1]))
    assert len(looks) == 28
    assert re.findall(r"<span>(.*?)</span>", legend(groups)) == [g.label for g in groups]
