import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from dapperfl.data.batches import Batches
from dapperfl.data.benchmark import Examples
from dapperfl.errors import ConfigError

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def examples(num: int, height: int = 6, width: int = 5) -> Examples:
    rng = torch.Generator().manual_seed(num)
    images = torch.randint(256, (num, 3, height, width), generator=rng, dtype=torch.uint8)
    return Examples(images, torch.arange(num))


def plain(image: Tensor, row: int, column: int, mirrored: bool, pad: int) -> Tensor:
    """Treat one picture as torchvision does: pad, crop, mirror, scale to [0, 1], normalise."""
    channels, height, width = image.shape
    around = torch.zeros(channels, height + 2 * pad, width + 2 * pad, dtype=torch.uint8)
    around[:, pad : pad + height, pad : pad + width] = image
    crop = around[:, row : row + height, column : column + width]
    if mirrored:
        crop = torch.stack([crop[:, :, width - 1 - i] for i in range(width)], dim=2)
    out = crop.float() / 255
    for channel in range(channels):
        out[channel] = (out[channel] - MEAN[channel]) / STD[channel]
    return out


@given(
    num=st.integers(1, 20),
    batch_size=st.integers(1, 8),
    pad=st.integers(0, 3),
    flip=st.booleans(),
    seed=st.integers(0, 2**40),
)
@settings(max_examples=60, deadline=None)
def test_an_epoch_equals_the_plain_definition_picture_by_picture(
    num: int, batch_size: int, pad: int, flip: bool, seed: int
) -> None:
    data = examples(num)
    batches = Batches(data, batch_size=batch_size, mean=MEAN, std=STD, pad=pad, flip=flip)
    seen = list(batches.epoch(torch.Generator().manual_seed(seed)))

    rng = torch.Generator().manual_seed(seed)
    order = torch.randperm(num, generator=rng)
    offsets = torch.randint(2 * pad + 1, (num, 2), generator=rng)
    mirrored = (torch.rand(num, generator=rng) < 0.5) & flip
    expected = torch.stack(
        [
            plain(data.images[i], int(row), int(column), bool(mirror), pad)
            for i, (row, column), mirror in zip(order, offsets, mirrored, strict=True)
        ]
    )
    torch.testing.assert_close(torch.cat([batch.x for batch in seen]), expected, rtol=0, atol=1e-6)
    assert torch.cat([batch.y for batch in seen]).tolist() == data.labels[order].tolist()


@given(num=st.integers(0, 40), batch_size=st.integers(2, 9))
@settings(max_examples=100, deadline=None)
def test_batches_are_full_and_never_end_on_a_single_example(num: int, batch_size: int) -> None:
    batches = Batches(examples(num), batch_size=batch_size)
    sizes = [len(batch.y) for batch in batches.clean()]
    assert sum(sizes) == num
    assert all(size == batch_size for size in sizes[:-1])
    assert sizes == [1] or 1 not in sizes
    assert max(sizes, default=0) <= batch_size + 1


def test_clean_batches_keep_order_and_pixels() -> None:
    data = examples(9)
    batches = Batches(data, batch_size=4, mean=MEAN, std=STD, pad=2, flip=True)
    seen = list(batches.clean())
    expected = torch.stack([plain(image, 0, 0, False, 0) for image in data.images])
    torch.testing.assert_close(torch.cat([batch.x for batch in seen]), expected, rtol=0, atol=1e-6)
    assert torch.cat([batch.y for batch in seen]).tolist() == list(range(9))
    assert batches.num_samples == 9


def test_pictures_stay_bytes_and_are_not_changed() -> None:
    data = examples(10)
    before = data.images.clone()
    batch = next(Batches(data, flip=True).epoch(torch.Generator()))
    assert batch.x.dtype == torch.float32
    assert batch.y.dtype == torch.int64
    assert data.images.dtype == torch.uint8
    assert torch.equal(data.images, before)


def test_the_generator_alone_decides_an_epoch() -> None:
    batches = Batches(examples(30), batch_size=8, flip=True)
    first, again, other = (
        torch.cat([batch.x for batch in batches.epoch(torch.Generator().manual_seed(seed))])
        for seed in (1, 1, 2)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_crops_and_mirroring_reach_all_their_values() -> None:
    spot = torch.zeros(1, 3, 5, 5, dtype=torch.uint8)
    spot[..., 2, 1] = 255
    data = Examples(spot.expand(800, -1, -1, -1).contiguous(), torch.zeros(800, dtype=torch.int64))
    (batch,) = Batches(data, batch_size=800, pad=1, flip=True).epoch(torch.Generator())
    places = {tuple(place.tolist()) for place in batch.x[:, 0].nonzero()[:, 1:]}
    # Column 1 moves to 0, 1 or 2; mirrored, these become 4, 3 and 2.
    assert places == {(row, column) for row in (1, 2, 3) for column in range(5)}


def test_a_batch_size_below_one_is_refused() -> None:
    with pytest.raises(ConfigError, match="batch_size = 0"):
        Batches(examples(3), batch_size=0)
