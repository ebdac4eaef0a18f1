import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from dapperfl.data.batches import Batches
from dapperfl.data.benchmark import Examples
from dapperfl.errors import ConfigError

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def examples(num: int, height: int = 6, width: int = 5, channels: int = 3) -> Examples:
    rng = torch.Generator().manual_seed(num)
    images = torch.randint(256, (num, channels, height, width), generator=rng, dtype=torch.uint8)
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


def plain_epoch(data: Examples, pad: int, flip: bool, seed: int) -> tuple[Tensor, list[int]]:
    """Draw an epoch as `Batches` says it does, and make its pictures one by one."""
    rng, num = torch.Generator().manual_seed(seed), len(data)
    order = torch.randperm(num, generator=rng)
    offsets = torch.randint(2 * pad + 1, (num, 2), generator=rng)
    mirrored = (torch.rand(num, generator=rng) < 0.5) & flip
    pictures = [
        plain(data.images[i], int(row), int(column), bool(mirror), pad)
        for i, (row, column), mirror in zip(order, offsets, mirrored, strict=True)
    ]
    return torch.stack(pictures), data.labels[order].tolist()


shapes = {
    "num": st.integers(1, 20),
    "batch_size": st.integers(1, 8),
    "height": st.integers(1, 7),
    "width": st.integers(1, 7),
    "channels": st.sampled_from([1, 3]),
    "pad": st.integers(0, 3),
    "flip": st.booleans(),
    "seed": st.integers(0, 2**40),
}


@given(**shapes, ahead=st.sampled_from([1, 10, 1000]))
@settings(max_examples=120, deadline=None)
def test_an_epoch_is_bit_by_bit_the_plain_definition_picture_by_picture(
    ahead: int,
    num: int,
    batch_size: int,
    height: int,
    width: int,
    channels: int,
    pad: int,
    flip: bool,
    seed: int,
) -> None:
    data = examples(num, height, width, channels)
    mean, std = MEAN[:channels], STD[:channels]
    batches = Batches(data, batch_size=batch_size, mean=mean, std=std, pad=pad, flip=flip)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dapperfl.data.batches.AHEAD", {"cpu": ahead})
        seen = list(batches.epoch(torch.Generator().manual_seed(seed)))
    expected, labels = plain_epoch(data, pad, flip, seed)
    assert torch.equal(torch.cat([batch.x for batch in seen]), expected)
    assert torch.cat([batch.y for batch in seen]).tolist() == labels
    assert [len(batch.y) for batch in seen] == [len(batch.y) for batch in batches.clean()]


def test_pictures_that_share_memory_are_read_right() -> None:
    whole = examples(12, 6, 8)
    data = Examples(whole.images[::2, :, :, 1:6], whole.labels[::2])
    (batch,) = Batches(data, mean=MEAN, std=STD, pad=0).epoch(torch.Generator().manual_seed(3))
    assert torch.equal(batch.x, plain_epoch(data, 0, False, 3)[0])


def test_no_examples_give_no_batches() -> None:
    assert list(Batches(examples(0)).epoch(torch.Generator())) == []


@pytest.mark.gpu
def test_a_gpu_makes_the_batches_of_the_cpu() -> None:
    data = examples(700, 32, 32)
    epochs = [
        list(
            Batches(data.to(device), batch_size=64, mean=MEAN, std=STD, flip=True).epoch(
                torch.Generator().manual_seed(1)
            )
        )
        for device in ("cpu", "cuda")
    ]
    for mine, yours in zip(*epochs, strict=True):
        assert yours.x.is_cuda
        torch.testing.assert_close(yours.x.cpu(), mine.x, rtol=0, atol=1e-6)
        assert torch.equal(yours.y.cpu(), mine.y)


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
    assert torch.equal(torch.cat([batch.x for batch in seen]), expected)
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


@pytest.mark.parametrize("kind", [torch.uint8, torch.int16, torch.bool])
def test_labels_of_any_integers_come_out_alike(kind: torch.dtype) -> None:
    data = examples(2)
    batches = Batches(Examples(data.images, data.labels.to(kind)), batch_size=2)
    (drawn,) = batches.epoch(torch.Generator())
    (clean,) = batches.clean()
    assert drawn.y.dtype == clean.y.dtype == torch.int64
    assert clean.y.tolist() == [0, 1]
