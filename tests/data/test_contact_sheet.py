from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from dapperfl.data.benchmark import Benchmark, Domain, Examples
from dapperfl.data.contact_sheet import COLUMNS, GAP, MARGIN, TILE, TITLE, draw
from dapperfl.errors import DataError


def coloured(num_classes: int, per_class: int) -> Examples:
    """Pictures of one colour each: green tells the class."""
    labels = torch.arange(num_classes * per_class) % num_classes
    images = torch.zeros(len(labels), 3, 8, 8, dtype=torch.uint8)
    images[:, 1] = (50 + 40 * labels).to(torch.uint8).view(-1, 1, 1)
    return Examples(images, labels)


def toy(train: int, test: int) -> Benchmark:
    domain = Domain(coloured(3, train), coloured(3, test), 9)
    return Benchmark("toy", {"a": domain, "b": domain, "c": domain}, tuple("xyz"), (0.5,), (0.5,))


def page(tmp_path: Path, benchmark: Benchmark, per_class: int) -> np.ndarray:
    path = tmp_path / "new" / "sheet.png"
    draw(benchmark, path, per_class=per_class)
    with Image.open(path) as image:
        assert image.format == "PNG"
        return np.asarray(image.convert("RGB"))


def test_each_class_has_its_column_and_each_split_its_rows(tmp_path: Path) -> None:
    pixels = page(tmp_path, toy(5, 5), per_class=2)
    step = TILE + GAP
    for column in range(3):
        for row, shift in ((0, 0), (1, 0), (2, 6)):  # test rows stand a little apart
            y = TITLE + row * step + shift + TILE // 2
            x = MARGIN + column * step + TILE // 2
            assert pixels[y, x].tolist() == [0, 50 + 40 * column, 0]


def test_the_page_holds_a_block_for_each_domain(tmp_path: Path) -> None:
    pixels = page(tmp_path, toy(2, 2), per_class=2)
    height, width = pixels.shape[0] // 2, pixels.shape[1] // COLUMNS
    inked = [
        bool((pixels[y : y + height, x : x + width] < 255).any())
        for y in (0, height)
        for x in (0, width)
    ]
    assert inked == [True, True, True, False]


def test_a_class_with_fewer_pictures_leaves_its_place_white(tmp_path: Path) -> None:
    pixels = page(tmp_path, toy(1, 1), per_class=2)
    middle = TITLE + TILE + GAP + TILE // 2
    assert (pixels[middle, MARGIN : MARGIN + 3 * TILE] == 255).all()


def test_minidigits_fits_on_a_page_that_can_be_read(tmp_path: Path, minidigits: Benchmark) -> None:
    pixels = page(tmp_path, minidigits, per_class=3)
    assert pixels.shape[1] < 1500
    assert pixels.shape[0] < 1500


@pytest.mark.parametrize("grey", [1, 3])
def test_grey_pictures_are_drawn_too(tmp_path: Path, grey: int) -> None:
    examples = Examples(
        torch.full((1, grey, 8, 8), 100, dtype=torch.uint8), torch.zeros(1, dtype=torch.int64)
    )
    benchmark = Benchmark("toy", {"a": Domain(examples, examples, 1)}, ("x",), (0.5,), (0.5,))
    pixels = page(tmp_path, benchmark, per_class=1)
    assert pixels[TITLE + TILE // 2, MARGIN + TILE // 2].tolist() == [100, 100, 100]


@pytest.mark.parametrize(("channels", "seen"), [(1, [9, 9, 9]), (2, [9, 9, 9]), (5, [9, 19, 29])])
def test_pictures_may_have_any_number_of_channels(
    tmp_path: Path, channels: int, seen: list[int]
) -> None:
    shades = torch.arange(9, 100, 10, dtype=torch.uint8)[:channels].view(1, -1, 1, 1)
    examples = Examples(shades.expand(1, -1, 8, 8), torch.tensor([0]))
    made = Benchmark("toy", {"a": Domain(examples, examples, 1)}, ("x",), (0.5,), (0.5,))
    assert page(tmp_path, made, per_class=1)[TITLE + 9, MARGIN + 9].tolist() == seen


def test_the_title_of_few_classes_fits_the_page(tmp_path: Path) -> None:
    domain = toy(2, 2).domains["a"]
    named = {"a": domain, "a name of some length": domain}
    narrow = Benchmark("toy", named, tuple("xyz"), (0.5,), (0.5,))
    pixels = page(tmp_path, narrow, per_class=2)
    assert (pixels[:TITLE, -8:] == 255).all()


def test_many_classes_with_long_names_fit_a_page(tmp_path: Path) -> None:
    domain = Domain(coloured(60, 2), coloured(60, 2), 120)
    names = tuple(f"a very\nlong name {number}" for number in range(60))
    pixels = page(tmp_path, Benchmark("toy", {"a\nb": domain}, names, (0.5,), (0.5,)), per_class=1)
    assert pixels.shape[1] < 24 * (TILE + GAP) + 100
    inked = pixels[24 : TITLE - 2, MARGIN:].min(axis=0).min(axis=1) < 255  # names of classes
    gaps = [inked[column * (TILE + GAP) - GAP : column * (TILE + GAP)] for column in range(1, 25)]
    assert not np.stack(gaps).any()
    assert inked.any()


def test_letters_of_other_languages_are_drawn(tmp_path: Path) -> None:
    domain = Domain(coloured(3, 1), coloured(3, 1), 3)
    words = ("ï", "ж", "λ")
    pixels = page(tmp_path, Benchmark("toy", {"a": domain}, words, (0.5,), (0.5,)), per_class=1)
    step = TILE + GAP
    drawn = [pixels[24:TITLE, MARGIN + i * step : MARGIN + i * step + TILE] for i in range(3)]
    assert not np.array_equal(drawn[0], drawn[1])  # as the boxes of letters that are missing are
    assert not np.array_equal(drawn[1], drawn[2])


def test_what_are_no_pictures_is_named(tmp_path: Path) -> None:
    good = coloured(1, 2)
    bad = Examples(good.images.float(), good.labels)
    made = Benchmark("toy", {"a": Domain(good, bad, 2)}, ("x",), (0.5,), (0.5,))
    with pytest.raises(DataError, match=r"test pictures of a: images are torch\.float32"):
        draw(made, tmp_path / "sheet.png")
