"""A trained net back from its run folder."""

import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, overload

import torch
from torch import Tensor, nn

from dapperfl.core.channels import ChannelGraph
from dapperfl.core.messages import LocalModel
from dapperfl.core.state import State
from dapperfl.core.submodel import Submodel
from dapperfl.data.benchmark import Federation
from dapperfl.errors import CheckpointError, ConfigError
from dapperfl.lab.build import build_net, build_on, load_federation
from dapperfl.lab.config import Config, EngineConfig
from dapperfl.lab.continuing import finished_summary, stored_config
from dapperfl.lab.experiment import about_model
from dapperfl.lab.folder import RunFolder, read_table, read_tensors
from dapperfl.lab.pictures import mark_of
from dapperfl.lab.records import read_devices
from dapperfl.lab.world import known_world, settled
from dapperfl.runtime.checkpoint import load_checkpoint

_log = logging.getLogger(__name__)


class TakesPictures(nn.Module):
    """A net that takes pictures as files have them, from 0 to 255: (n, channels, height, width).

    Attributes:
        classes: What each logit stands for.
        shape: Channels, height and width of the pictures it was trained with.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, net: nn.Module, about: Mapping[str, Any]) -> None:
        super().__init__()
        self.net = net
        self.classes = tuple(about["classes"])
        self.shape = tuple(about["image"])
        for name in ("mean", "std"):
            self.register_buffer(name, torch.tensor(about[name]).view(-1, 1, 1))

    def forward(self, pictures: Tensor) -> Tensor:
        """Return the logits of some pictures."""
        logits: Tensor = self.net((pictures / 255 - self.mean) / self.std)
        return logits


@overload
def load_run(folder: Path | str, rho: float | None = None) -> nn.Module: ...


@overload
def load_run(
    folder: Path | str, rho: float | None = None, *, pictures: Literal[True]
) -> TakesPictures: ...


def load_run(folder: Path | str, rho: float | None = None, *, pictures: bool = False) -> nn.Module:
    """Return the net that a run trained, ready for inference on the CPU.

    Args:
        folder: the run folder.
        rho: a level of the run, for its physically smaller net; None for the global net.
        pictures: whether it is to take pictures from 0 to 255; else they are normalised before, as
            its training data were.

    Raises:
        CheckpointError: a file is missing or damaged, or the run has no such level.
    """
    run = RunFolder(Path(folder))
    if not run.config.exists():
        raise CheckpointError(f"{run.path} has no config.toml; is it a run folder?")
    config = stored_config(run)
    if rho is not None:
        rho = _level(run, rho)
    finished = finished_summary(config, run.path) is not None
    net, about = (_from_models if finished else _from_checkpoint)(run, config, rho)
    if not pictures:
        return net
    if not {"mean", "std"} <= about.keys():
        raise CheckpointError(
            f"{run.path} is of a version that did not write down how pictures are normalised; "
            "leave out pictures=True, and do it yourself"
        )
    try:
        return TakesPictures(net, about).eval()
    except (TypeError, ValueError, RuntimeError) as error:
        raise CheckpointError(f"{run.path} has a damaged model: {error}") from error


def _level(run: RunFolder, rho: float) -> float:
    levels = sorted({device.rho for device in read_devices(run)})
    if rho not in levels:
        raise CheckpointError(f"{run.path} has no level rho = {rho}; its levels are {levels}")
    return rho


def _from_models(
    run: RunFolder, config: Config, rho: float | None
) -> tuple[nn.Module, dict[str, Any]]:
    path = run.model if rho is None else run.level(rho)
    weights, about = read_tensors(path)
    try:
        net = _build(config, about)
        graph = ChannelGraph.trace(net, torch.zeros(1, *about["image"]))
        net = Submodel.from_lists(graph, about["kept"]).shrink(net)
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path} is damaged: its metadata lacks {error}") from error
    return _load(net, weights, path), about


def _build(config: Config, about: dict[str, Any]) -> nn.Module:
    classes, image = about["classes"], about["image"]
    net = build_net(config, num_classes=len(classes), in_channels=image[0])
    head = ChannelGraph.trace(net, torch.zeros(1, *image)).head
    return config.method.build().prepare(net, head)


def _load(net: nn.Module, weights: State, path: Path) -> nn.Module:
    try:
        net.load_state_dict(weights)
    except RuntimeError as error:
        raise CheckpointError(f"{path} does not fit the net of its config.toml: {error}") from error
    return net.eval()


def _world(run: RunFolder, config: Config) -> Federation:
    """Return the devices of a run, which may have brought the pictures themselves."""
    if config.deploy.devices_bring_pictures and run.allocation.exists():
        with suppress(ConfigError):  # a fleet that nobody could have served
            # The config may have been simulated all the same; the mark says what was done with it.
            known, remedy = known_world(config), "bring it back from a copy"
            if mark_of(known) == read_table(run.allocation, remedy).get("pictures"):
                return settled(known, read_devices(run))
    return load_federation(config)


def _from_checkpoint(
    run: RunFolder, config: Config, rho: float | None
) -> tuple[nn.Module, dict[str, Any]]:
    world = _world(run, config)
    simulator = build_on(replace(config, engine=EngineConfig(device="cpu")), world)
    snapshot = load_checkpoint(run.checkpoint, simulator.start())
    if snapshot is None:
        raise CheckpointError(f"{run.path} has no complete round yet; continue it with --resume")
    server = snapshot.server
    _log.warning(
        "%s is not finished: this is the net after round %d of %d",
        *(run.path, server.round_num, config.rounds),
    )
    if rho and simulator.measures(server) and not world.train:
        raise CheckpointError(
            f"{run.path} is not finished: the statistics of a small net are measured by devices, "
            "at the end; take the whole net, or continue the run"
        )
    whole = simulator.delivered(server)
    local: LocalModel = whole if rho is None else simulator.compact(server, rho)
    net = _load(local.submodel.shrink(simulator.net), local.weights, run.checkpoint)
    return net, about_model(world)
