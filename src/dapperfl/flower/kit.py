"""What server and device both make of a run's terms: the net, its graph and the codec."""

from dataclasses import dataclass, replace
from functools import lru_cache

import torch

from dapperfl.core.channels import ChannelGraph
from dapperfl.core.state import num_bytes
from dapperfl.data.batches import Batches
from dapperfl.data.benchmark import Examples
from dapperfl.errors import MessageError
from dapperfl.flower.terms import Terms
from dapperfl.lab.build import build_net
from dapperfl.lab.config import Config
from dapperfl.runtime.local import Trade, prepared
from dapperfl.runtime.packing import HEADER_LIMIT
from dapperfl.runtime.precision import Precision
from dapperfl.runtime.turning import can_turn
from dapperfl.runtime.wire import SHARED_LIMIT, Codec

NET_LIMIT = 2**32  # bytes of a net that is built because a message says so


@dataclass(frozen=True)
class Kit:
    """What is needed to read and to answer the messages of a run."""

    terms: Terms
    config: Config
    trade: Trade
    graph: ChannelGraph
    codec: Codec

    def batches(self, examples: Examples, batch_size: int | None = None) -> Batches:
        """Make pictures ready to be gone through, as the run wants it."""
        device = next(self.trade.template.parameters()).device
        return Batches(
            examples.to(str(device)),
            batch_size=batch_size or self.trade.settings.batch_size,
            mean=self.terms.mean,
            std=self.terms.std,
            pad=self.terms.pad,
            flip=self.terms.flip,
        )


@lru_cache(maxsize=1)  # a process may handle several messages of a run
def build_kit(terms: Terms, trusted: tuple[str, ...] = ()) -> Kit:
    """Build the net of a run.

    Raises:
        MessageError: If the terms ask for what is not trusted, or for a net that is too large.
    """
    config = terms.read_config(trusted)
    _check_size(config, terms)
    device = _torch_device(config)
    net = build_net(config, num_classes=len(terms.classes), in_channels=terms.picture[0])
    example = torch.zeros(1, *terms.picture, device=device)
    method = config.method.build()
    # A CPU has no tf32, and what it has is more exact.
    coarse = config.engine.precision == "tf32" and device == "cpu"
    precision: Precision = "fp32" if coarse else config.engine.precision
    ready, graph = prepared(method, net, example, len(terms.classes), precision)
    turns = can_turn(ready, example, precision)
    trade = Trade(method, ready, config.train, precision, turns=turns)
    return Kit(terms, config, trade, graph, Codec.of(ready, graph, fp16=config.deploy.fp16))


def reply_limit(codec: Codec) -> int:
    """Return the most bytes that an honest reply can have."""
    return codec.cargo.limit + SHARED_LIMIT + 3 * HEADER_LIMIT


def modules_of(config: Config) -> tuple[str, ...]:
    """Name the modules that one's own config loads code from."""
    names = (config.method.name, config.net.name, config.data.benchmark)
    return tuple(name.partition(":")[0] for name in names if ":" in name)


def _check_size(config: Config, terms: Terms) -> None:
    """Weigh the net before it takes up any memory."""
    if ":" in config.net.name:
        return  # code that the owner of this machine trusts; it may do what it likes
    with torch.device("meta"):
        net = build_net(config, num_classes=len(terms.classes), in_channels=terms.picture[0])
    size = num_bytes(net.state_dict())
    if size > NET_LIMIT:
        raise MessageError(f"the net of the run has {size} bytes, at most {NET_LIMIT} are believed")


def _torch_device(config: Config) -> str:
    """Take a GPU of this machine if the run may use one; which one another machine has is moot."""
    anywhere = "cpu" if config.engine.device == "cpu" else "auto"
    return replace(config.engine, device=anywhere).torch_device()
