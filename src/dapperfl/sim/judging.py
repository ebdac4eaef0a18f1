"""How good a model is: on every domain, on what is kept aside, and at home on one device."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from dapperfl.core.messages import LocalModel
from dapperfl.core.state import snapshot
from dapperfl.data.batches import Batches
from dapperfl.runtime.calibration import calibrate
from dapperfl.runtime.evaluation import evaluate
from dapperfl.runtime.frozen import FrozenNets
from dapperfl.runtime.training import LARGE_BATCH


@dataclass(frozen=True)
class Judge:
    """Looks at models with pictures that nobody trains on.

    Args:
        nets: Turns a model into a net, in the run's number format.
        running: What runs a net of fixed mode on batches; see `Runner.looking_through`.
        test: The test set of every domain.
        aside: What devices, or nobody, keep aside to choose by, of every domain.
    """

    nets: FrozenNets
    running: Callable[[nn.Module], Callable[[Tensor], Tensor]]
    test: Mapping[str, Batches]
    aside: Mapping[str, Batches]

    def on(self, data: Mapping[str, Batches], model: LocalModel) -> dict[str, float]:
        """Return a global or compact model's accuracy on each of these, in percent."""
        net = self.running(self.nets.holding(model))
        return evaluate(net, {n: each.clean() for n, each in data.items()}, self.nets.precision)

    def at_home(self, model: LocalModel, own: Batches, domain: str) -> float:
        """Return how good a compact model is on a domain, calibrated to pictures of its own."""
        if own.num_samples > 1:  # the spread of a single one is none
            pictures = (batch.x for batch in own.clean(LARGE_BATCH))
            net = calibrate(self.nets.holding(model), pictures, precision=self.nets.precision)
            model = LocalModel(snapshot(net), model.submodel)
        return self.on({domain: self.test[domain]}, model)[domain]
