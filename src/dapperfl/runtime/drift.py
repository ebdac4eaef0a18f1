"""How far a client's model has gone from the one it was sent."""

from math import sqrt

from dapperfl.core.messages import LocalModel
from dapperfl.core.state import State


def drift(sent: LocalModel, back: LocalModel) -> float:
    """Return ‖w − W‖ / max(‖W‖, 1), over the parameters that came back.

    Norms are l2; W is the model that was sent, cut down to the channels of w. Running statistics
    do not count: they follow the data, not the learning rate.
    """
    before = _as_sent(sent, back)
    after = {name: back.weights[name].double() for name in before}
    moved = _norm({name: after[name] - tensor.double() for name, tensor in before.items()})
    return moved / max(_norm(before), 1.0)


def nearer(sent: LocalModel, back: LocalModel, share: float) -> LocalModel:
    """Return a client's model after only a share of the way that its parameters went."""
    before = _as_sent(sent, back)
    cut = {name: tensor.lerp(back.weights[name], share) for name, tensor in before.items()}
    return LocalModel(back.weights | cut, back.submodel)


def _as_sent(sent: LocalModel, back: LocalModel) -> State:
    """Return the sent parameters of the channels that came back."""
    graph = sent.submodel.graph
    whole = {name: sent.weights[name].to(back.weights[name].device) for name in graph.named}
    if sent.submodel.kept:  # from small to smaller, by way of the full shape
        zeros = {name: tensor.new_zeros(graph.shapes[name]) for name, tensor in whole.items()}
        whole = sent.submodel.scatter(whole, zeros)
    return back.submodel.slice(whole)


def _norm(state: State) -> float:
    return sqrt(sum(float(tensor.double().square().sum()) for tensor in state.values()))
