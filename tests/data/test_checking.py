from dataclasses import replace

import pytest
import torch

from dapperfl.core.messages import Device
from dapperfl.data.benchmark import Examples, Federation
from dapperfl.data.checking import check_pictures
from dapperfl.errors import DataError

GOOD = Examples(torch.zeros(4, 3, 8, 8, dtype=torch.uint8), torch.arange(4) % 2)
DEVICES = (Device(0, "sea", 0.0, 4), Device(1, "land", 0.0, 4))
WORLD = Federation(DEVICES, {0: GOOD, 1: GOOD}, {"ice": GOOD}, ("a", "b"), (0.5,), (0.2,) * 3)


def test_what_is_right_passes_also_where_devices_are_elsewhere() -> None:
    check_pictures(WORLD)
    check_pictures(replace(WORLD, train={}, test={}, picture=(3, 8, 8)))


@pytest.mark.parametrize(
    ("examples", "message"),
    [
        (replace(GOOD, images=GOOD.images / 255), r"images are torch\.float32"),
        (replace(GOOD, images=GOOD.images[:, :, 0]), r"\(4, 3, 8\), not uint8"),
        (replace(GOOD, labels=GOOD.labels + 1), r"labels are not within 0\.\.1"),
        (replace(GOOD, labels=GOOD.labels / 1), r"labels are torch\.float32"),
        (replace(GOOD, labels=GOOD.labels[:3]), "not integers, one an image"),
        (GOOD.pick(torch.arange(0)), "there are none"),
    ],
)
def test_what_would_come_out_wrong_is_named(examples: Examples, message: str) -> None:
    with pytest.raises(DataError, match=f"^training pictures of land: .*{message}"):
        check_pictures(replace(WORLD, train={0: GOOD, 1: examples}))
    with pytest.raises(DataError, match=f"^test pictures of ice: .*{message}"):
        check_pictures(replace(WORLD, test={"ice": examples}))


def test_there_is_one_shape_and_a_mean_for_each_channel() -> None:
    with pytest.raises(DataError, match=r"\(3, 8, 7\) in test pictures of ice"):
        check_pictures(replace(WORLD, test={"ice": replace(GOOD, images=GOOD.images[..., :7])}))
    with pytest.raises(DataError, match="one for each of 3 channels"):
        check_pictures(replace(WORLD, mean=(0.5, 0.5)))


def test_pictures_are_not_divided_by_zero() -> None:
    with pytest.raises(DataError, match=r"std = \(0\.2, 0\.0, 0\.2\).* must be above 0"):
        check_pictures(replace(WORLD, std=(0.2, 0.0, 0.2)))
