import pytest
import torch

from dapperfl.data.drawing import CANVAS, Pose, blur, glyph_width, glyphs, paint, place, to_bytes


def pose(num: int, **changes: float) -> Pose:
    plain = {"scale": 1.0, "angle": 0.0, "x": 0.0, "y": 0.0} | changes
    return Pose(**{key: torch.full((num,), value) for key, value in plain.items()})


def corner() -> torch.Tensor:
    """A mask with ink in its right upper quarter only."""
    mask = torch.zeros(1, CANVAS, CANVAS)
    mask[:, 8:24, 40:56] = 1
    return mask


def centre_of(picture: torch.Tensor) -> tuple[float, float]:
    rows, columns = picture[0, 0].sum(dim=1), picture[0, 0].sum(dim=0)
    steps = torch.arange(len(rows)) + 0.5
    return float(rows @ steps / rows.sum()), float(columns @ steps / columns.sum())


def test_glyphs_are_centred_equally_tall_and_all_different() -> None:
    drawn = glyphs(["DejaVuSans.ttf", "cmr10.ttf"])
    assert drawn.shape == (2, 10, CANVAS, CANVAS)
    inked = drawn.amax(dim=3) > 0
    assert (inked.sum(dim=2) == 48).all()
    for font in drawn.flatten(2):
        assert torch.cdist(font, font).fill_diagonal_(99).min() > 5


def test_the_width_of_a_glyph_is_measured() -> None:
    assert glyph_width(corner()).tolist() == [16 / CANVAS]


def test_a_glyph_placed_plainly_is_only_halved_in_size() -> None:
    placed = place(corner(), pose(1))
    assert centre_of(placed) == pytest.approx((8.0, 24.0), abs=1e-4)
    torch.testing.assert_close(placed.sum() * 4, corner().sum())


def test_a_positive_angle_turns_clockwise() -> None:
    placed = place(corner(), pose(1, angle=90.0))
    assert centre_of(placed) == pytest.approx((24.0, 24.0), abs=1e-4)


def test_scale_and_shift_move_a_glyph_as_they_say() -> None:
    placed = place(corner(), pose(1, scale=0.5, x=0.25, y=-0.25))
    assert centre_of(placed) == pytest.approx((16 - 4 - 4, 16 + 4 + 4), abs=1e-4)


def test_blur_keeps_the_light_and_each_picture_its_own_width() -> None:
    dots = torch.zeros(2, 3, 32, 32)
    dots[:, :, 16, 16] = 1
    soft = blur(dots, torch.tensor([0.5, 1.1]))
    torch.testing.assert_close(soft.sum((2, 3)), torch.ones(2, 3))
    assert soft[0, 0, 16, 16] > 2 * soft[1, 0, 16, 16]


def test_paint_mixes_by_the_mask_and_bytes_are_rounded_and_clamped() -> None:
    mask = torch.tensor([0.0, 0.5, 1.0]).view(1, 1, 1, 3)
    mixed = paint(torch.full((1, 3, 1, 1), 0.2), torch.full((1, 3, 1, 1), 1.4), mask)
    assert to_bytes(mixed)[0, 0, :, 0].tolist() == [51, 204, 255]
