from dataclasses import replace

import pytest
import torch
from tests.tiny import tiny_net

from dapperfl.core.channels import ChannelGraph
from dapperfl.core.messages import (
    Assignment,
    ClientCost,
    ClientUpdate,
    Device,
    LocalModel,
    ServerState,
)
from dapperfl.core.net import Batch
from dapperfl.core.styles import (
    ALL,
    MOST,
    OWN,
    SHARE,
    remembering,
    restyled,
    style_of,
    with_styles,
    without_style,
)

NET = tiny_net()
MODEL = LocalModel(NET.state_dict(), ChannelGraph.trace(NET, torch.zeros(1, 3, 6, 6)).full())


def batch_of(*shape: int, seed: int = 0) -> Batch:
    x = torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
    return Batch(2 * x + 1, torch.arange(shape[0]) % 2)


def fleet(count: int) -> tuple[Device, ...]:
    return tuple(Device(number, "light", 0.0, 8) for number in range(count))


def state(count: int) -> ServerState:
    return ServerState(0, MODEL, fleet(count))


def look(number: float) -> torch.Tensor:
    return torch.full((4, 3), float(number))


def test_a_style_is_how_means_and_deviations_of_pictures_are_spread():
    batch = batch_of(8, 3, 5, 4)
    means = torch.stack([picture.mean((1, 2)) for picture in batch.x])
    deviations = torch.stack([picture.std((1, 2), correction=0) for picture in batch.x])
    expected = [
        means.mean(0),
        means.std(0, correction=0),
        deviations.mean(0),
        deviations.std(0, correction=0),
    ]
    style = style_of([batch])[OWN]
    assert style.shape == (4, 3)
    assert torch.allclose(style, torch.stack(expected), atol=1e-5)
    halves = [Batch(batch.x[:3], batch.y[:3]), Batch(batch.x[3:], batch.y[3:])]
    assert torch.allclose(style_of(halves)[OWN], style, atol=1e-6)


@pytest.mark.parametrize(
    "inputs",
    [torch.zeros(4, 7), torch.zeros(4, 7, 2, dtype=torch.int64), torch.zeros(4, 7, 1, 1)],
)
def test_what_has_no_channels_in_space_has_no_style(inputs):
    assert style_of([Batch(inputs, torch.zeros(4))]) == {}


def test_all_pictures_take_the_style_of_the_only_device_and_still_show_the_same():
    batch, other = batch_of(6, 3, 8, 8), batch_of(50, 3, 8, 8, seed=1)
    there = style_of([Batch(5 - 0.3 * other.x, other.y)])[OWN]
    there[[1, 3]] = 0.0  # all its pictures alike
    after = restyled(batch, there[None], 1.0)
    assert after.y is batch.y
    assert torch.allclose(after.x.mean((2, 3)), there[0].expand(6, 3), atol=1e-4)
    assert torch.allclose(after.x.std((2, 3), correction=0), there[2].expand(6, 3), atol=1e-4)
    for before, now in zip(batch.x.flatten(0, 1), after.x.flatten(0, 1), strict=True):
        both = torch.stack([before.flatten(), now.flatten()])
        assert torch.corrcoef(both)[0, 1] > 0.9999


def test_drawn_styles_are_spread_as_the_devices_pictures_are():
    torch.manual_seed(0)
    style = torch.tensor([[[3.0], [0.5], [2.0], [0.25]], [[-3.0], [0.5], [2.0], [0.25]]])
    means = restyled(batch_of(4000, 1, 4, 4), style, 1.0).x.mean((1, 2, 3))
    first = means > 0
    assert abs(float(first.float().mean()) - 0.5) < 0.05
    assert torch.allclose(means[first].mean(), torch.tensor(3.0), atol=0.05)
    assert torch.allclose(means[first].std(), torch.tensor(0.5), atol=0.05)


def test_only_the_share_is_restyled():
    torch.manual_seed(0)
    batch = batch_of(2000, 3, 4, 4)
    after = restyled(batch, look(9.0)[None], torch.tensor(0.25))
    same = (after.x == batch.x).all((1, 2, 3))
    assert 0.7 < float(same.float().mean()) < 0.8
    assert torch.equal(restyled(batch, look(9.0)[None], 0.0).x, batch.x)


def test_noise_in_a_picture_of_one_colour_is_not_blown_up():
    pictures = torch.ones(4, 3, 5, 5)
    pictures[1:, :, 2, 2] += 0.01
    exact = torch.tensor([2.0, 0.0, 2.0, 0.0])[:, None].expand(4, 3)  # no spread: known in advance
    after = restyled(Batch(pictures, torch.zeros(4)), exact[None], 1.0).x
    assert torch.allclose(after[0], torch.full((3, 5, 5), 2.0), atol=1e-4)
    contrast = (after[1:, :, 2, 2] - after[1:, :, 0, 0]) / 0.01
    assert torch.allclose(contrast, torch.full((3, 3), 2.0 / 0.05), rtol=1e-3)


def test_the_server_takes_styles_out_of_updates_and_hands_all_of_them_out():
    server = state(3)
    updates = [
        ClientUpdate(device, MODEL, 8, ClientCost(), {OWN: look(device.id), "more": look(7)})
        for device in server.fleet
    ]
    found: dict[int, torch.Tensor] = {}
    seen = list(without_style(iter(updates), found))
    assert [list(update.shared) for update in seen] == [["more"]] * 3
    after = remembering(server, found)
    task = Assignment(1, server.fleet[0], MODEL, 1, {"rho": torch.tensor(0.5)})
    handed = with_styles(task, after, 0.25).shared
    assert handed.keys() == {"rho", ALL, SHARE}
    assert handed[SHARE] == 0.25
    assert torch.equal(handed[ALL], torch.stack([look(0), look(1), look(2)]))
    assert with_styles(task, server, 0.25) is task
    assert remembering(server, {}) is server


def test_rows_are_always_as_many_and_only_of_styles_that_are_known():
    server = remembering(state(5), {1: look(1), 4: look(4)})
    task = Assignment(1, server.fleet[0], MODEL, 1)
    rows = with_styles(task, server, 0.5).shared[ALL]
    assert rows[:, 0, 0].tolist() == [1, 4, 1, 4, 1]
    later = remembering(server, {1: look(9)})
    assert with_styles(task, later, 0.5).shared[ALL][:, 0, 0].tolist() == [9, 4, 9, 4, 9]
    assert server.styles["rows"][1, 0, 0] == 1  # states do not change


def test_a_large_fleet_is_remembered_in_so_many_rows_whoever_answers_first():
    server = state(MOST * 3)
    found = {device: look(device) for device in (MOST + 2, 2, 5)}
    after = remembering(server, found)
    again = remembering(server, dict(reversed(found.items())))
    assert after.styles["rows"].shape == (MOST, 4, 3)
    assert int(after.styles["known"].sum()) == 2
    assert torch.equal(after.styles["rows"], again.styles["rows"])
    assert after.styles["rows"][2, 0, 0] == MOST + 2


def test_a_fleet_that_grows_shares_the_rows_there_are():
    server = remembering(state(2), {0: look(0), 1: look(1)})
    grown = remembering(replace(server, fleet=fleet(4)), {3: look(3)})
    assert grown.styles["rows"][:, 0, 0].tolist() == [0, 3]


def test_a_fleet_that_nobody_listed_has_room_for_one():
    assert len(remembering(replace(state(1), fleet=()), {3: look(3)}).styles["rows"]) == 1
