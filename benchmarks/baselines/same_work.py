"""The work that other frameworks are given: the same net, the same pictures, the same round."""

import statistics
from collections.abc import Callable, Sequence
from functools import lru_cache

import torch
from torch import nn

from benchmarks.baselines import bare_loop
from benchmarks.measure import medians, with_threads
from benchmarks.synthetic import CLASSES, examples
from dapperfl import nets
from dapperfl.data.benchmark import Examples


@lru_cache(maxsize=1)
def clients(devices: int) -> list[Examples]:
    """Give every device one batch of noise."""
    each = bare_loop.BATCH
    pictures = examples(devices * each, 32)
    return [pictures.pick(torch.arange(each) + each * index) for index in range(devices)]


@lru_cache(maxsize=1)
def net(width: int) -> nn.Module:
    """Build the net; every process needs only one."""
    return nets.build("convnet", num_classes=len(CLASSES), width=width)


def bare_seconds(devices: int, width: int, repeats: int) -> float:
    """Time the bare loop in this process, and leave torch the number of threads that suits it."""
    bare = bare_loop.rounds(net(width), clients(devices), examples(bare_loop.BATCH, 32))
    counts = bare_loop.threads()
    timed = medians([with_threads(count, bare) for count in counts], repeats)
    torch.set_num_threads(counts[timed.index(min(timed))])
    return min(timed)


def beside_bare(
    run: Callable[[], Sequence[float]], devices: int, width: int, repeats: int
) -> tuple[float, float]:
    """Return the median of a framework's rounds, and of bare ones before and after them."""
    before = bare_seconds(devices, width, repeats)
    seconds = statistics.median(run())
    after = bare_seconds(devices, width, repeats)
    return seconds, (before + after) / 2
