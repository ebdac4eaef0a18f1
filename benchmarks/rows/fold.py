"""How fast the server folds updates of mixed levels into the new global model."""

from collections.abc import Callable, Iterator

from benchmarks.measure import Options, Row, at_least, medians
from benchmarks.rows.steps import submodel_of
from dapperfl import LocalModel, RecoveredMean, nets
from dapperfl.core.channels import Scope
from dapperfl.core.state import State, num_bytes

LEVELS = (0.0, 0.2, 0.4, 0.6, 0.8)
GOALS: dict[Scope, float] = {"inner": 0.15, "all": 0.05}


def copy_all(states: list[State]) -> Callable[[], object]:
    """Return the plainest thing one can do with these bytes."""
    return lambda: [[tensor.clone() for tensor in state.values()] for state in states]


def fold_all(mean: RecoveredMean, models: list[LocalModel]) -> Callable[[], object]:
    """Return what a server does with one update of each level."""

    def fold() -> None:
        for model in models:
            mean.add(model, 1.0)

    return fold


def measure(options: Options) -> Iterator[Row | str]:
    """Compare folding one update of each level with a plain copy of the same bytes."""
    width, repeats = (8, 3) if options.quick else (64, 15)
    net = nets.build("resnet18", num_classes=10, width=width)
    state = net.state_dict()
    for scope, goal in GOALS.items():
        submodels = [submodel_of(net, rho, scope) for rho in LEVELS]
        models = [LocalModel(each.slice(state), each) for each in submodels]
        states = [model.weights for model in models]
        work = [fold_all(RecoveredMean(state, "gated"), models), copy_all(states)]
        fold, copy = medians(work, repeats)
        billions = sum(map(num_bytes, states)) / 1e9
        what = f"fold of ResNet18 width {width} updates, fp32, rho 0 to .8, scope {scope}"
        name = f"{what}, over a plain copy"
        yield Row(name, billions / fold, "GB/s", billions / copy, copy / fold, at_least(goal))
