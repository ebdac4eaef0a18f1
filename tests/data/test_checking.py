from dataclasses import replace
from typing import Any

import pytest
import torch

from dapperfl.core.messages import Device
from dapperfl.data.benchmark import Benchmark, Domain, Examples, Federation
from dapperfl.data.checking import check_parts, check_pictures
from dapperfl.errors import DataError

GOOD = Examples(torch.zeros(4, 3, 8, 8, dtype=torch.uint8), torch.arange(4) % 2)
DEVICES = (Device(0, "sea", 0.0, 4), Device(1, "land", 0.0, 4))
WORLD = Federation(DEVICES, {0: GOOD, 1: GOOD}, {"ice": GOOD}, ("a", "b"), (0.5,), (0.2,) * 3)


MADE: Any = Examples  # of whatever a user has
BENCHMARK = Benchmark("own", {"sea": Domain(GOOD, GOOD, 4)}, ("a", "b"), (0.5,), (0.2,))


@pytest.mark.parametrize(
    ("examples", "message"),
    [
        (replace(GOOD, labels=GOOD.labels[:3]), "there are 4 images and 3 labels"),
        (MADE(GOOD.images.numpy(), GOOD.labels), "images are a ndarray, not a tensor"),
        (MADE(GOOD.images, GOOD.labels.tolist()), "labels are a list, not a tensor; torch.as_"),
        (MADE(GOOD.images, list("abab")), r"labels are a list.*\[classes\.index\(name\) for"),
        ((GOOD.images, GOOD.labels), "expected Examples.* not a tuple"),
    ],
)
def test_pictures_that_cannot_be_dealt_out_are_named(examples: Any, message: str) -> None:
    check_parts(BENCHMARK)
    with pytest.raises(DataError, match=f"^training pictures of sea: {message}"):
        check_parts(replace(BENCHMARK, domains={"sea": Domain(examples, GOOD, 4)}))
    check_parts(replace(BENCHMARK, domains={"sea": Domain(GOOD, examples, 4)}))  # unseen so far
    with pytest.raises(DataError, match=f"^test pictures of ice: {message}"):
        check_pictures(replace(WORLD, test={"ice": examples}))


def test_domains_have_names_and_means_are_for_each_channel() -> None:
    with pytest.raises(DataError, match="domain 1: its name is a int, not a text"):
        check_parts(replace(BENCHMARK, domains={1: BENCHMARK.domains["sea"]}))  # type: ignore[dict-item]
    with pytest.raises(DataError, match=r"mean = 0\.5: expected a tuple"):
        check_parts(replace(BENCHMARK, mean=0.5))  # type: ignore[arg-type]


def test_what_is_right_passes_also_where_devices_are_elsewhere() -> None:
    check_pictures(WORLD)
    check_pictures(replace(WORLD, train={}, test={}, picture=(3, 8, 8)))


@pytest.mark.parametrize(
    ("examples", "message"),
    [
        (replace(GOOD, images=GOOD.images / 255), r"images are torch\.float32"),
        (replace(GOOD, images=GOOD.images[:, :, 0]), r"\(4, 3, 8\), not uint8"),
        (replace(GOOD, labels=GOOD.labels + 1), r"labels are not within 0\.\.1.* counted from 0"),
        (replace(GOOD, labels=GOOD.labels / 1), r"labels are torch\.float32"),
        (replace(GOOD, labels=GOOD.labels[:, None]), r"not integers, one an image; .*argmax\(1\)"),
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


def test_means_and_deviations_are_finite_and_of_the_scale_of_pictures() -> None:
    for field in ("mean", "std"):
        for odd in (float("nan"), float("inf")):
            changed: dict[str, Any] = {field: (0.5, odd, 0.5)}
            with pytest.raises(DataError, match=rf"^{field} = .*{odd}.* expected finite numbers"):
                check_pictures(replace(WORLD, **changed))
    with pytest.raises(DataError, match=r"mean = \(127\.0,\).* divide mean and std by 255"):
        check_pictures(replace(WORLD, mean=(127.0,), std=(60.0,)))


@pytest.mark.parametrize("kind", [torch.bool, torch.uint8, torch.uint16, torch.int32])
def test_labels_may_be_integers_of_any_kind(kind: torch.dtype) -> None:
    held = replace(GOOD, labels=GOOD.labels.to(kind))
    check_pictures(replace(WORLD, test={"ice": held}))
    complex_ones = replace(GOOD, labels=GOOD.labels.to(torch.complex64))
    with pytest.raises(DataError, match=r"labels are .*complex64"):
        check_pictures(replace(WORLD, test={"ice": complex_ones}))


def test_labels_out_of_range_say_what_they_are() -> None:
    with pytest.raises(DataError, match=r"not within 0\.\.1: they are from 1 to 2"):
        check_pictures(replace(WORLD, test={"ice": replace(GOOD, labels=GOOD.labels + 1)}))


def test_tensors_without_pixels_are_named() -> None:
    for odd in (GOOD.images.to_sparse(), GOOD.images.to("meta")):
        with pytest.raises(DataError, match=r"images are a sparse tensor, or have no data"):
            check_parts(
                replace(BENCHMARK, domains={"sea": Domain(MADE(odd, GOOD.labels), GOOD, 4)})
            )


def shaped(*shape: int) -> Federation:
    held = Examples(torch.zeros(4, *shape, dtype=torch.uint8), GOOD.labels)
    return replace(WORLD, train={0: held}, test={"ice": held}, std=(0.2,))


def test_pictures_that_shifts_put_out_of_sight_are_told(caplog: pytest.LogCaptureFixture) -> None:
    check_pictures(shaped(6, 5, 50))
    check_pictures(replace(shaped(6, 1, 50), pad=0))
    assert not caplog.messages
    check_pictures(shaped(6, 1, 50))  # series as pictures of one line
    assert "some of 1 × 50 are out of sight then, all zero; give Benchmark(pad=0)" in caplog.text


def test_pictures_with_their_channels_last_are_told(caplog: pytest.LogCaptureFixture) -> None:
    check_pictures(shaped(3, 8, 8))
    check_pictures(replace(shaped(6, 50, 1), pad=0))
    assert not caplog.messages
    check_pictures(replace(shaped(8, 8, 1), pad=0))
    assert "8 channels of 8 × 1 pixels: if they are (n, height, width, channels)" in caplog.text


def test_classes_that_nobody_can_learn_are_told(caplog: pytest.LogCaptureFixture) -> None:
    first, second = GOOD.pick(torch.tensor([0, 2])), GOOD.pick(torch.tensor([1, 3]))
    check_pictures(replace(WORLD, train={0: first, 1: second}))
    check_pictures(replace(WORLD, train={0: first}, test={"ice": first}))
    check_pictures(replace(WORLD, train={}))  # devices are elsewhere
    assert not caplog.messages
    check_pictures(replace(WORLD, train={0: first, 1: first}))
    assert "no device trains on pictures of b, which tests ask for; give" in caplog.text


def test_a_mean_of_other_channels_names_the_shape_and_the_way_out() -> None:
    last = replace(shaped(8, 9, 3), mean=(0.5,) * 3, std=(0.2,) * 3)
    with pytest.raises(DataError, match=r"8 channels.*\(8, 9, 3\); if .*permute\(0, 3, 1, 2\)"):
        check_pictures(last)
    with pytest.raises(DataError, match=r"= \(1, 8, 8\)$"):
        check_pictures(replace(shaped(1, 8, 8), mean=(0.5,) * 3))
