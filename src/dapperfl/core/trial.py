"""Trying a channel graph on its net: a cut net must compute what the masked full net computes.

Rules cannot see numbers written in a user's code, such as the 400 of `x.view(-1, 400)`. So every
graph is tried, with weights and inputs that hide nothing, in evaluation and in training mode: at
about half of its channels, and as the smallest net that a budget may ask for, where `x.squeeze()`
drops an axis and a comparison with a size turns round.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from dapperfl.core.calls import canonical_name, tensors_in
from dapperfl.core.rng import foreign, foreign_seeded, generator
from dapperfl.core.submodel import Submodel, copy_net
from dapperfl.errors import TraceError

if TYPE_CHECKING:
    from dapperfl.core.channels import ChannelGraph, Group

# What a user's forward may raise when a size does not fit.
MISFITS = (RuntimeError, ValueError, IndexError, TypeError, AssertionError, KeyError)


Left = dict["Group", int]  # how many bundles are left of each group that is cut
HALF = 0  # about half of them


class Verdict(NamedTuple):
    """What a trial has found."""

    unfit: Mapping["Group", str]  # groups that must stay full, and why
    least: Mapping["Group", int]  # the fewest bundles that may be left of the others


class NoDropout(TorchFunctionMode):
    """Lets dropout pass everything: its masks would differ with the size of the tensor."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Return the input of a dropout, and run anything else."""
        kwargs = kwargs or {}
        if "dropout" in canonical_name(func):
            return args[0] if args else kwargs["input"]
        return func(*args, **kwargs)


class Trial:
    """A net whose weights and inputs hide nothing, to try cuts on."""

    def __init__(self, graph: "ChannelGraph", net: nn.Module, batch: Tensor) -> None:
        self.graph = graph
        self.net, self.batch = _lively(net, batch)
        self.exact = self.batch.dtype == torch.float64
        self.tolerance = 1e-6 if self.exact else max(1e-3, 10 * _rounding(self.net))
        self.seen: dict[bool, tuple[list[Tensor], bool]] = {}  # the last outputs in each mode

    def verdict(self) -> "Verdict":
        """Say which groups cannot be cut after all, and which cannot lose all but one bundle.

        Raises:
            TraceError: If a copy of the net does not compute what the net computes, or if that is
                not finite.
        """
        if not self.graph.groups:
            self._check_copy()
        unfit = self._blamed(dict.fromkeys(self.graph.groups, HALF))
        least = dict.fromkeys((group for group in self.graph.groups if group not in unfit), 1)
        failing, left = self._blamed(least), 1
        while failing:
            left *= 2
            able = [group for group in failing if left < len(self.graph.bundles[group]) // 2]
            unfit |= {group: fault for group, fault in failing.items() if group not in able}
            failing = self._blamed(dict.fromkeys(able, left))
            least |= dict.fromkeys(able, left)
        least = {group: fewest for group, fewest in least.items() if group not in unfit}
        raised = [group for group, fewest in least.items() if fewest > 1]
        if raised and (fault := self.fault(least)):  # what is enough for each is not for all
            unfit |= dict.fromkeys(raised, fault)
        return Verdict(unfit, least)

    def _check_copy(self) -> None:
        self.seen.clear()  # what a cut net returned is no matter here
        if fault := self.fault({}):
            for training, (outputs, _) in self.seen.items():
                _check_finite(outputs, "training" if training else "evaluation")
            raise TraceError(f"a copy of the net does not work like the net itself: {fault}")

    def _blamed(self, left: "Left") -> dict["Group", str]:
        """Find the groups to blame, if something is wrong."""
        if not left or not self.fault(left):
            return {}
        self._check_copy()
        unfit = self._search(left)
        rest = {group: number for group, number in left.items() if group not in unfit}
        if rest and self.fault(rest):  # some fail only together: take them in one by one
            able: Left = {}
            for group, number in rest.items():
                if fault := self.fault({**able, group: number}):
                    unfit[group] = fault
                else:
                    able[group] = number
        return unfit

    def _search(self, left: "Left") -> dict["Group", str]:
        """Find the groups that fail on their own, by halving."""
        fault = self.fault(left) if left else None
        if not fault:
            return {}
        groups = list(left)
        if len(groups) == 1:
            return {groups[0]: fault}
        half = len(groups) // 2
        parts = groups[:half], groups[half:]
        first, second = ({group: left[group] for group in part} for part in parts)
        return {**self._search(first), **self._search(second)}

    def fault(self, left: "Left") -> str | None:
        """Leave some bundles of each group and compare with the masked net; say what is wrong.

        A small net's values are compared in evaluation only: batch norm amplifies rounding where a
        single channel hardly varies. So its masked twin need not be run in training.
        """
        few = any(number != HALF for number in left.values())
        cut = _deed(left, few=few)
        submodel = self._submodel(left)
        masked = self._masked(submodel, self._submodel(dict.fromkeys(left, HALF) if few else {}))
        small = submodel.shrink(self.net)
        for training in (False, True):
            if not (few and training):
                self._look(masked.train(training))
            if training not in self.seen:
                continue  # the net does not run in this mode at all
            theirs, is_random = self.seen[training]
            try:
                ours, _ = _outputs(small.train(training), self.batch)
            except MISFITS as error:
                return f"{cut} fails, a size is fixed in code: {first_line(error)}"
            steady = not training or (self.exact and not few)
            values = steady and not is_random
            if not _alike(ours, theirs, tolerance=self.tolerance, values=values):
                return f"{cut} changes what the net computes"
        return None

    def _submodel(self, left: "Left") -> Submodel:
        kept = {group: self._some(group, number) for group, number in left.items()}
        return Submodel(self.graph, kept)

    def _masked(self, submodel: Submodel, within: Submodel) -> nn.Module:
        """Return the net, or a cut one that is known to work and runs faster, with zeros in it."""
        masked = within.shrink(self.net) if within.kept else copy_net(self.net)
        masked.load_state_dict(within.slice(submodel.mask(self.net.state_dict())))
        return masked

    def _look(self, masked: nn.Module) -> None:
        """Remember what the masked net returns, if it runs in its mode."""
        self.seen.pop(masked.training, None)
        with suppress(*MISFITS):
            self.seen[masked.training] = _outputs(masked, self.batch)

    def _some(self, group: "Group", number: int) -> Tensor:
        """Choose so many bundles at random, or an odd number, about half."""
        rows = self.graph.bundles[group]
        order = torch.randperm(len(rows), generator=generator(0, "trial", group.name))
        return rows[order[: number or len(rows) // 2 | 1]].flatten().sort().values


def _deed(left: "Left", *, few: bool) -> str:
    """Say what was tried."""
    if not left:
        return "copying it"
    names = ", ".join(group.name for group in left)
    return f"cutting {names} down to the last channels" if few else f"cutting {names}"


def first_line(error: Exception) -> str:
    """Say in a line what a user's forward raised."""
    return (str(error) or type(error).__name__).splitlines()[0]


def _lively(net: nn.Module, batch: Tensor) -> tuple[nn.Module, Tensor]:
    """Move weights and inputs off special values such as zero, if the net can stand it.

    Double precision and noisy inputs are tried first, then the net's own types, then no noise.
    """
    for exact in (True, False):
        if exact and not batch.is_floating_point():
            continue
        lively, inputs = copy_net(net), batch
        if exact:
            lively, inputs = lively.double(), inputs.double()
        if inputs.is_floating_point():
            inputs = inputs + _noise(inputs)
        with torch.no_grad():
            for parameter in filter(Tensor.is_floating_point, lively.parameters()):
                rows = len(parameter) if parameter.dim() > 1 else parameter.numel()
                fan_in = max(parameter.numel() // max(rows, 1), 1)
                parameter.add_(_noise(parameter), alpha=(0.1 if fan_in == 1 else fan_in**-0.5))
        try:
            outputs, _ = _outputs(lively.eval(), inputs)
        except MISFITS:
            continue
        if all(bool(torch.isfinite(out).all()) for out in outputs):
            return lively, inputs
    return copy_net(net), batch


def _rounding(net: nn.Module) -> float:
    """Return the largest share of a number that the net's own types round off."""
    types = {p.dtype for p in net.parameters() if p.is_floating_point()}
    return max((torch.finfo(each).eps for each in types), default=0.0)


def _noise(tensor: Tensor) -> Tensor:
    rng = generator(0, "noise", *tensor.shape)
    return torch.rand(tensor.shape, generator=rng).mul_(4).sub_(2).to(tensor)


@contextmanager
def private_rng(device: torch.device) -> Iterator[torch.Generator]:
    """Lend the default generator of a device, seeded; all generators are put back afterwards.

    Those of Python and numpy are among them: nets that skip blocks at random often ask these.
    """
    with torch.random.fork_rng([device] if device.type == "cuda" else []), foreign_seeded(0):
        torch.manual_seed(0)
        index = device.index if device.index is not None else 0
        yield (
            torch.cuda.default_generators[index]
            if device.type == "cuda"
            else torch.default_generator
        )


def _generators(rng: torch.Generator) -> list[object]:
    """Return the states of all generators, to be compared."""
    own = [bytes(state.tolist()) for state in (rng.get_state(), torch.get_rng_state())]
    return [*own, foreign()]


def _outputs(net: nn.Module, batch: Tensor) -> tuple[list[Tensor], bool]:
    """Run a net without dropout; return its outputs and whether it drew random numbers."""
    with private_rng(batch.device) as rng, torch.no_grad(), NoDropout():
        before = _generators(rng)
        outputs = list(tensors_in(net(batch.clone())))
        return outputs, before != _generators(rng)


def _check_finite(outputs: list[Tensor], mode: str) -> None:
    """Refuse values that are like no others, not even like themselves, so that no copy has them."""
    for out in outputs:
        wrong = out[~torch.isfinite(out)]
        if wrong.numel():
            raise TraceError(
                f"the net returns values that are not finite in {mode}, such as {wrong[0].item()}; "
                "look in forward() for a division by what may be zero, such as a standard "
                "deviation without an epsilon"
            )


def _alike(ours: list[Tensor], theirs: list[Tensor], *, tolerance: float, values: bool) -> bool:
    """Compare outputs in shape, and in values if they are worth comparing."""
    if [out.shape for out in ours] != [out.shape for out in theirs]:
        return False
    return not values or all(
        bool(((mine - other).abs() <= tolerance * (1 + other.abs().amax())).all())
        for mine, other in zip(ours, theirs, strict=True)
        if other.numel()
    )
