"""What is blue was kept."""

import re
from base64 import b64decode
from io import BytesIO

import pytest
from PIL import Image
from tests.lab.made_runs import write_run

from dapperfl.core.masks import Mask
from dapperfl.errors import CheckpointError
from dapperfl.lab.gather import load_run_folder, load_runs
from dapperfl.lab.groups import grouped
from dapperfl.lab.report.heatmap import history, kept_channels, pixels

# Two rounds: a layer of four channels and one of two; "4:3" keeps the channels 0 and 1.
KEPT = [{0.8: {"conv": "4:3", "wide": "2:1"}}, {0.8: {"conv": "4:9"}, 0.5: {"conv": "4:7"}}]


def _opacity(share: float) -> int:
    return round(28 + share * 227)


def test_a_row_is_a_channel_and_a_column_a_round(tmp_path):
    run = load_run_folder(write_run(tmp_path, kept=KEPT))
    masks = history(run, "conv", 4, 0.8)
    assert masks == [Mask(4, 0b0011), Mask(4, 0b1001)]
    stays, gone = _opacity(1), _opacity(0)
    opacities = [[pixel[3] for pixel in row] for row in pixels(masks, 4)]
    assert opacities == [[stays, stays], [stays, gone], [gone, gone], [gone, stays]]


def test_a_layer_that_is_not_named_was_whole_and_a_level_that_is_not_was_absent(tmp_path):
    run = load_run_folder(write_run(tmp_path, kept=KEPT))
    assert history(run, "wide", 2, 0.8) == [Mask(2, 0b01), Mask(2, 0b11)]
    assert history(run, "conv", 4, 0.5) == [None, Mask(4, 0b0111)]
    assert pixels([None], 2) == [[(0, 0, 0, 0)], [(0, 0, 0, 0)]]


def test_many_channels_share_a_row():
    column = [row[0][3] for row in pixels([Mask(256, 0b111)], 256)]
    assert len(column) == 128
    assert column[:3] == [_opacity(1), _opacity(0.5), _opacity(0)]


def test_every_level_and_layer_is_drawn_and_counted(tmp_path):
    write_run(tmp_path / "run", "seed=7", kept=KEPT)
    [group] = grouped(load_runs([tmp_path]))
    drawn = kept_channels(group)
    assert drawn is not None
    pictures = re.findall(r'base64,([^"]+)"', drawn)
    sizes = [Image.open(BytesIO(b64decode(data))).size for data in pictures]
    assert sizes == [(2, 4), (2, 4), (2, 2), (2, 2)]  # conv at .5 and .8, then wide
    assert "dapperfl:default, seed 7" in drawn
    # At .8: 3 of 6 channels, then 4 of 6; of those four, only channel 0 of each layer stayed.
    assert re.search(r"0\.8</th><td>58\.3 %</td><td>50\.0 %</td>", drawn)
    assert re.search(r"0\.5</th><td>83\.3 %</td><td>–</td>", drawn)


def test_only_the_largest_layers_are_drawn(tmp_path):
    sizes = {"a": 8, "b": 4, "c": 16, "d": 32, "e": 64}
    write_run(tmp_path / "run", kept=[{0.8: {name: f"{n}:1" for name, n in sizes.items()}}] * 2)
    [group] = grouped(load_runs([tmp_path]))
    drawn = kept_channels(group)
    assert drawn is not None
    titles = re.findall(r"<figcaption>(\w) ", drawn)
    assert titles == ["a", "c", "d", "e"]
    assert "4 largest of 5" in drawn


def test_nothing_cut_is_nothing_to_draw(tmp_path):
    write_run(tmp_path / "run")
    [group] = grouped(load_runs([tmp_path]))
    assert kept_channels(group) is None


def test_a_damaged_mask_is_named(tmp_path):
    write_run(tmp_path / "run", kept=[{0.8: {"conv": "4:zz"}}] * 2)
    [group] = grouped(load_runs([tmp_path]))
    with pytest.raises(CheckpointError, match="4:zz"):
        kept_channels(group)
