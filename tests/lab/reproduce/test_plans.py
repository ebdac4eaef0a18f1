"""The plans are what the paper shows, and their configs those of experiments/."""

from dataclasses import fields, replace
from pathlib import Path

import pytest

from dapperfl.errors import ConfigError
from dapperfl.lab.compare.planned import plan_runs
from dapperfl.lab.reproduce.plans import FILES, PLANS, base_of, find_plan, given_to_all
from dapperfl.lab.resolve import resolve
from dapperfl.methods.base import Method

EXPERIMENTS = Path(__file__).parents[3] / "experiments"
PAPERS_NINE = {
    "fedavg", "moon", "fedsr", "fpl", "feddrop", "fedprox", "fedmp", "nefl", "dapperfl",
}  # fmt: skip


def test_there_is_a_plan_for_every_table_and_figure():
    assert list(PLANS) == [
        "table-digits", "table-office", "footprint", "ablation", "alpha0", "alpha-min", "epsilon",
        "gamma", "epsilon-search", "curves", "rates", "equal",
    ]  # fmt: skip


@pytest.mark.parametrize("path", FILES.values(), ids=list(FILES))
def test_the_packages_configs_are_those_of_the_experiments(path):
    ours = resolve(path, ["method.preset=paper"])
    assert ours == resolve(EXPERIMENTS / path.name)


@pytest.mark.parametrize("name", ["table-digits", "table-office", "curves"])
def test_the_papers_nine_methods_are_compared(name):
    assert {variant.name for variant in PLANS[name].variants()} >= PAPERS_NINE


def test_the_main_tables_have_three_presets_of_ours_and_what_the_paper_lacks():
    labels = [variant.label for variant in PLANS["table-digits"].variants()]
    assert len(labels) == len(set(labels)) == 15
    assert {"dapperfl:paper", "dapperfl:release", "dapperfl:default", "heterofl", "fedrolex",
            "fedavg_capable", "fedavg_small"} <= set(labels)  # fmt: skip


@pytest.mark.parametrize("quick", [False, True])
@pytest.mark.parametrize("name", PLANS)
def test_every_run_of_every_plan_has_a_config(name, quick):
    plan = PLANS[name]
    for base in plan.bases:
        runs = plan_runs(base_of(plan, base, (), quick=quick), plan.variants(), plan.seeds)
        assert len(runs) == len(plan.variants()) * len(plan.seeds)
        expected = "minidigits" if quick else resolve(FILES[base]).data.benchmark
        assert {run.config.data.benchmark for run in runs} == {expected}


def test_ablations_switch_off_what_they_say():
    plan = replace(
        PLANS["ablation"], methods=find_plan("ablation", methods="dapperfl:paper").methods
    )
    base = base_of(plan, "digits", (), quick=False)
    fields = {run.label: run.config.method.fields for run in plan_runs(base, plan.variants(), [0])}
    found = {
        label.removeprefix("dapperfl:paper "): (each["alpha_0"], each["alpha_min"], each["gamma"])
        for label, each in fields.items()
    }
    assert found == {
        "w/o MFP+DAR": (0, 0, 0), "w/o DAR": (0.9, 0.1, 0), "w/o MFP": (0, 0, 0.01),
        "complete": (0.9, 0.1, 0.01),
    }  # fmt: skip


def test_a_ratio_is_the_same_for_all_devices():
    plan = PLANS["footprint"]
    runs = plan_runs(base_of(plan, "office", (), quick=False), plan.variants(), [0])
    assert sorted({run.config.fleet.rhos for run in runs}) == [(0.2,), (0.4,), (0.6,), (0.8,)]
    assert {run.config.method.name for run in runs} == {"dapperfl", "fedmp", "nefl"}


def test_plans_share_their_runs():
    def keys(name, base="digits"):
        plan = PLANS[name]
        runs = plan_runs(base_of(plan, base, (), quick=False), plan.variants(), plan.seeds)
        return {run.key for run in runs}

    table = keys("table-digits")
    assert keys("curves") < table
    for name in ("ablation", "alpha0", "alpha-min", "epsilon", "gamma"):
        assert len(keys(name) & table) == 2 * 3  # both presets at the paper's values, three seeds


def test_what_any_method_can_have_is_given_to_all():
    assert given_to_all() == (
        "method.weight_power=0.5", "method.averaging=0.1", "method.restyle=0.5",
        "method.restyle_rounds=20",
    )  # fmt: skip
    for name in ("rates", "equal"):
        plan = PLANS[name]
        assert {each.name for each in plan.methods} == {
            "fedavg", "dapperfl", "heterofl", "fedrolex", "fedavg_capable", "fedavg_small",
            "feddrop", "fedmp", "nefl",
        }  # fmt: skip
        runs = plan_runs(base_of(plan, "office", (), quick=False), plan.variants(), [0])
        given = {
            tuple(run.config.method.fields[each.name] for each in fields(Method)) for run in runs
        }
        assert given == {(0.5, 0.1, 0.5, 20)}
        assert {run.config.train.lr for run in runs} == {0.01, 0.02, 0.04}
        assert {run.config.data.blind for run in runs} == {name == "rates"}


def test_wrong_names_are_refused_with_the_right_ones():
    with pytest.raises(ConfigError, match='did you mean "table-digits"'):
        find_plan("table-digit")
    with pytest.raises(ConfigError, match="table-office has office"):
        find_plan("table-office", only="digits")
    assert find_plan("gamma", only="office").bases == ("office",)
