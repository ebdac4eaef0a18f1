"""Which runs each table or figure of the paper needs, and those of a fair comparison beside it."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

from dapperfl.errors import ConfigError
from dapperfl.lab.compare.planned import Base
from dapperfl.lab.compare.variants import Variant, parse_variants
from dapperfl.methods.base import Method
from dapperfl.methods.dapperfl import DapperFL
from dapperfl.naming import did_you_mean

_HERE = Path(__file__).parent
FILES = {"digits": _HERE / "digits.toml", "office": _HERE / "office_caltech.toml"}
# The same plans within minutes on two cores: embedded pictures, narrow nets, few rounds.
_QUICK = ("data=minidigits", "data.protocol=fair")
QUICK = {
    "digits": (*_QUICK, "net.width=8", "rounds=3", "train.epochs=2", "train.batch_size=32",
               "train.lr=0.05"),
    "office": (*_QUICK, "net=convnet", "net.width=8", "rounds=6", "train.epochs=2",
               "train.batch_size=8", "train.lr=0.02", "data.fraction=0.2"),
}  # fmt: skip
QUICK_SEEDS = 2  # at most
QUICK_TRIALS, TRIALS = 8, 40

_FULL_NETS = "fedavg,moon,fedsr,fpl"
_SMALL_NETS = "feddrop,fedprox,fedmp,nefl"
_OURS = "dapperfl:paper,dapperfl:release,dapperfl:default"
_BEYOND = "heterofl,fedrolex,fedavg_capable,fedavg_small"
_TABLE = parse_variants(f"{_FULL_NETS},{_SMALL_NETS},{_OURS},{_BEYOND}")
_TWO_PRESETS = parse_variants("dapperfl:default,dapperfl:paper")


_HELD_AGAINST = parse_variants(f"fedavg,dapperfl:default,{_BEYOND},feddrop,fedmp,nefl")
RATES, EQUAL = "rates", "equal"
_TRIED = (0.01, 0.02, 0.04)  # the paper's learning rate, and twice and four times that
TO_CHOOSE_BY = 2  # seeds


# What DapperFL's default measures in its first ten rounds does not reach the last of a hundred, and
# not every method can have it: no table has to pay for its downloads.
_OF_METHOD = {"dapperfl": ("method.recalibrate_rounds=0",)}


@dataclass(frozen=True)
class Point:
    """One setting of a sweep; its label follows the method's name."""

    label: str = ""
    settings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Plan:
    """The runs of a name: methods at all points, on all its benchmarks."""

    name: str
    about: str
    bases: tuple[str, ...]
    methods: tuple[Variant, ...]
    points: tuple[Point, ...] = (Point(),)
    field: str | None = None  # the hyper-parameter that a sweep varies
    settings: tuple[str, ...] = ()  # of all its runs
    seeds: tuple[int, ...] = (0, 1, 2)

    def variants(self) -> list[Variant]:
        """Return every method at every point."""
        return [at_point(method, point) for method in self.methods for point in self.points]


def at_point(method: Variant, point: Point) -> Variant:
    """Return a method with the settings of a point, named after both."""
    name = f"{method.name}:{method.preset}" if method.preset else method.name
    own = " ".join([name, *method.settings])
    label = f"{method.label or own} {point.label}".strip()
    return replace(method, settings=(*method.settings, *point.settings), label=label)


def _sweep(name: str, field: str, place: str, *values: float) -> Plan:
    points = [Point(f"{field}={value:g}", (f"method.{field}={value:g}",)) for value in values]
    about = f"{place}: the effect of {field}; the values are ours, the paper's figure has no list"
    return Plan(name, about, tuple(FILES), tuple(_TWO_PRESETS), tuple(points), field)


def given_to_all() -> tuple[str, ...]:
    """Return the settings of DapperFL's default that any method can have."""
    ours = DapperFL.from_preset()
    return tuple(f"method.{each.name}={getattr(ours, each.name)}" for each in fields(Method))


_AT_RATES = tuple(Point(f"lr={rate:g}", (*given_to_all(), f"train.lr={rate:g}")) for rate in _TRIED)
_PLANS = (
    Plan("table-digits", "Table 1: all methods on Digits", ("digits",), tuple(_TABLE)),
    Plan("table-office", "Table 2: all methods on Office-Caltech", ("office",), tuple(_TABLE)),
    Plan(
        "footprint",
        "Figure 3, Tables 5 and 6: one pruning ratio for all devices",
        tuple(FILES),
        tuple(parse_variants("dapperfl:default,dapperfl:paper,fedmp,nefl")),
        tuple(Point(f"ρ={rho}", (f"fleet.rhos=[{rho}]",)) for rho in (0.2, 0.4, 0.6, 0.8)),
    ),
    Plan(
        "ablation",
        "Table 3: without fusion (MFP) and without regularisation (DAR)",
        tuple(FILES),
        tuple(_TWO_PRESETS),
        (
            Point("w/o MFP+DAR", ("method.alpha_0=0", "method.alpha_min=0", "method.gamma=0")),
            Point("w/o DAR", ("method.gamma=0",)),
            Point("w/o MFP", ("method.alpha_0=0", "method.alpha_min=0")),
            Point("complete"),
        ),
    ),
    _sweep("alpha0", "alpha_0", "Figure 4a", 0.1, 0.3, 0.5, 0.7, 0.9),
    _sweep("alpha-min", "alpha_min", "Figure 4b", 0.0, 0.1, 0.3, 0.5, 0.7),
    _sweep("epsilon", "epsilon", "Figure 4c", 0.05, 0.1, 0.2, 0.4, 0.8),
    _sweep("gamma", "gamma", "Figure 4d", 0.0, 0.001, 0.01, 0.1, 1.0),
    Plan(
        "epsilon-search",
        "Figure 7: Bayesian search for epsilon below 0.2 on Office-Caltech",
        ("office",),
        tuple(parse_variants("dapperfl:default")),
        field="epsilon",
        settings=("data.validation=0.2",),  # what the search looks at
        seeds=(0,),
    ),
    Plan(
        "curves",
        "Figures 5 and 6: the best accuracy until each round",
        tuple(FILES),
        tuple(parse_variants(f"{_FULL_NETS},{_SMALL_NETS},dapperfl:paper,dapperfl:default")),
    ),
    Plan(
        RATES,
        "Not in the paper: which learning rate suits whom, judged by pictures kept aside",
        tuple(FILES),
        tuple(_HELD_AGAINST),
        _AT_RATES,
        settings=("data.reserve=500", "data.blind=true"),
        seeds=tuple(range(TO_CHOOSE_BY)),
    ),
    Plan(
        EQUAL,
        "Not in the paper: all with what DapperFL has that any method can have, at these rates",
        tuple(FILES),
        tuple(_HELD_AGAINST),
        _AT_RATES,  # of which each has one on each benchmark
        seeds=(0, 1, 2, 3, 4),
    ),
)
PLANS = {plan.name: plan for plan in _PLANS}


def find_plan(name: str, *, methods: str | None = None, only: str | None = None) -> Plan:
    """Return a plan by its name, with other methods or on one of its benchmarks only.

    Raises:
        ConfigError: there is no such name or benchmark.
    """
    if name not in PLANS:
        raise ConfigError(f'there is no "{name}" to reproduce{did_you_mean(name, PLANS)}')
    plan = PLANS[name]
    if only is not None and only not in plan.bases:
        raise ConfigError(f"--only {only}: {name} has {' and '.join(plan.bases)}")
    return replace(
        plan,
        methods=tuple(parse_variants(methods)) if methods is not None else plan.methods,
        bases=(only,) if only else plan.bases,
    )


def base_of(plan: Plan, name: str, overrides: Sequence[str], *, quick: bool) -> Base:
    """Return what all runs of a plan on a benchmark share."""
    small = QUICK[name] if quick else ()
    return Base(name, FILES[name], (*small, *plan.settings, *overrides), _OF_METHOD)
