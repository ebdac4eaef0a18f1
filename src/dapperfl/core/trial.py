"""Trying a channel graph on its net: a cut net must compute what the masked full net computes.

Rules cannot see numbers written in a user's code, such as the 400 of `x.view(-1, 400)`. So every
graph is tried once, with weights and inputs that hide nothing, in evaluation and in training mode.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from dapperfl.core.calls import canonical_name, tensors_in
from dapperfl.core.rng import generator
from dapperfl.core.submodel import Submodel, copy_net
from dapperfl.errors import TraceError

if TYPE_CHECKING:
    from dapperfl.core.channels import ChannelGraph, Group

# What a user's forward may raise when a size does not fit.
MISFITS = (RuntimeError, ValueError, IndexError, TypeError, AssertionError, KeyError)


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

    def unfit(self) -> dict["Group", str]:
        """Return the groups that cannot be cut after all, and why.

        Raises:
            TraceError: If a copy of the net does not compute what the net computes.
        """
        groups = self.graph.groups
        if groups and not self.fault(groups):
            return {}
        if fault := self.fault(()):
            raise TraceError(f"a copy of the net does not work like the net itself: {fault}")
        unfit = self._search(groups)
        rest = [group for group in groups if group not in unfit]
        if rest and self.fault(rest):  # some fail only together: take them in one by one
            able: list[Group] = []
            for group in rest:
                if fault := self.fault([*able, group]):
                    unfit[group] = fault
                else:
                    able.append(group)
        return unfit

    def _search(self, groups: Sequence["Group"]) -> dict["Group", str]:
        """Find the groups that fail on their own, by halving."""
        fault = self.fault(groups) if groups else None
        if not fault:
            return {}
        if len(groups) == 1:
            return {groups[0]: fault}
        half = len(groups) // 2
        return {**self._search(groups[:half]), **self._search(groups[half:])}

    def fault(self, groups: Sequence["Group"]) -> str | None:
        """Cut some of each group off and compare with the masked net; say what is wrong."""
        submodel = Submodel(self.graph, {group: self._some(group) for group in groups})
        cut = f"cutting {', '.join(group.name for group in groups)}" if groups else "copying it"
        masked = copy_net(self.net)
        masked.load_state_dict(submodel.mask(self.net.state_dict()))
        small = submodel.shrink(self.net)
        for training in (False, True):
            try:
                theirs, is_random = _outputs(masked.train(training), self.batch)
            except MISFITS:
                continue  # the net does not run in this mode at all
            try:
                ours, _ = _outputs(small.train(training), self.batch)
            except MISFITS as error:
                return f"{cut} fails, a size is fixed in code: {_first_line(error)}"
            values = not is_random and (self.exact or not training)  # batch norm amplifies rounding
            if not _alike(ours, theirs, tolerance=1e-6 if self.exact else 1e-3, values=values):
                return f"{cut} changes what the net computes"
        return None

    def _some(self, group: "Group") -> Tensor:
        """Choose an odd number of bundles, about half, at random."""
        rows = self.graph.bundles[group]
        order = torch.randperm(len(rows), generator=generator(0, "trial", group.name))
        return rows[order[: len(rows) // 2 | 1]].flatten().sort().values


def _first_line(error: Exception) -> str:
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
            lively, inputs = lively.double(), batch.double() + _noise(batch.double())
        with torch.no_grad():
            for parameter in lively.parameters():
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


def _noise(tensor: Tensor) -> Tensor:
    rng = generator(0, "noise", *tensor.shape)
    return torch.rand(tensor.shape, generator=rng).mul_(4).sub_(2).to(tensor)


@contextmanager
def private_rng(device: torch.device) -> Iterator[torch.Generator]:
    """Lend the default generator of a device, seeded; all generators are put back afterwards."""
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(0)
        index = device.index if device.index is not None else 0
        yield (
            torch.cuda.default_generators[index]
            if device.type == "cuda"
            else torch.default_generator
        )


def _outputs(net: nn.Module, batch: Tensor) -> tuple[list[Tensor], bool]:
    """Run a net without dropout; return its outputs and whether it drew random numbers."""
    with private_rng(batch.device) as rng, torch.no_grad(), NoDropout():
        before = [rng.get_state(), torch.get_rng_state()]
        outputs = list(tensors_in(net(batch.clone())))
        after = [rng.get_state(), torch.get_rng_state()]
        return outputs, not all(map(torch.equal, before, after))


def _alike(ours: list[Tensor], theirs: list[Tensor], *, tolerance: float, values: bool) -> bool:
    """Compare outputs in shape, and in values if they are worth comparing."""
    if [out.shape for out in ours] != [out.shape for out in theirs]:
        return False
    return not values or all(
        bool(((mine - other).abs() <= tolerance * (1 + other.abs().amax())).all())
        for mine, other in zip(ours, theirs, strict=True)
        if other.numel()
    )
