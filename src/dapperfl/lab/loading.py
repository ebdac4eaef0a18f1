"""A trained net back from its run folder."""

import logging
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dapperfl.core.channels import ChannelGraph
from dapperfl.core.messages import LocalModel
from dapperfl.core.state import State
from dapperfl.core.submodel import Submodel
from dapperfl.data.benchmark import Federation
from dapperfl.errors import CheckpointError, ConfigError
from dapperfl.lab.build import build_net, build_on, load_federation
from dapperfl.lab.config import Config, EngineConfig
from dapperfl.lab.experiment import finished_summary, stored_config
from dapperfl.lab.folder import RunFolder, read_table, read_tensors
from dapperfl.lab.pictures import mark_of
from dapperfl.lab.records import read_devices
from dapperfl.lab.world import known_world, settled
from dapperfl.runtime.checkpoint import load_checkpoint

_log = logging.getLogger(__name__)


def load_run(folder: Path | str, rho: float | None = None) -> nn.Module:
    """Return the net that a run trained, ready for inference on the CPU.

    Args:
        folder: the run folder.
        rho: a level of the run, for its physically smaller net; None for the global net.

    Raises:
        CheckpointError: a file is missing or damaged, or the run has no such level.
    """
    run = RunFolder(Path(folder))
    if not run.config.exists():
        raise CheckpointError(f"{run.path} has no config.toml; is it a run folder?")
    config = stored_config(run)
    if rho is not None:
        rho = _level(run, rho)
    if finished_summary(config, run.path) is None:
        return _from_checkpoint(run, config, rho)
    return _from_models(run, config, rho)


def _level(run: RunFolder, rho: float) -> float:
    levels = sorted({device.rho for device in read_devices(run)})
    if rho not in levels:
        raise CheckpointError(f"{run.path} has no level rho = {rho}; its levels are {levels}")
    return rho


def _from_models(run: RunFolder, config: Config, rho: float | None) -> nn.Module:
    path = run.model if rho is None else run.level(rho)
    weights, about = read_tensors(path)
    try:
        net = _build(config, about)
        graph = ChannelGraph.trace(net, torch.zeros(1, *about["image"]))
        net = Submodel.from_lists(graph, about["kept"]).shrink(net)
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path} is damaged: its metadata lacks {error}") from error
    return _load(net, weights, path)


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


def _from_checkpoint(run: RunFolder, config: Config, rho: float | None) -> nn.Module:
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
    if rho and simulator.measures and not world.train:
        raise CheckpointError(
            f"{run.path} is not finished: the statistics of a small net are measured by devices, "
            "at the end; take the whole net, or continue the run"
        )
    whole = simulator.delivered(server)
    local: LocalModel = whole if rho is None else simulator.compact(server, rho)
    return _load(local.submodel.shrink(simulator.net), local.weights, run.checkpoint)
