"""Every name for real, smaller than --quick: minidigits, one round, the narrowest nets."""

import csv
import io
import re
from collections import defaultdict
from dataclasses import replace
from math import sqrt

import pytest
from rich.console import Console

from dapperfl.lab.compare.collect import Collection
from dapperfl.lab.compare.log import Log
from dapperfl.lab.reproduce.plans import PLANS
from dapperfl.lab.reproduce.render import write_from_csv
from dapperfl.lab.reproduce.work import Wish, fulfil

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

TINY = ("rounds=1", "train.epochs=1", "net=convnet", "net.width=2", "data.fraction=0.02",
        "train.batch_size=32", "fleet.devices=5", "engine.device=cpu")  # fmt: skip
SEEDS = {"table-digits": (0, 1)}  # others have one
MOST = {"rates": 2, "equal": 2}  # methods
DOMAINS = ("handwriting", "photo", "print", "street")
AXES = {
    "footprint": {"": ("pruning ratio ρ of every device", "accuracy [%]", 2)},
    "alpha0": {"": ("alpha_0", "global accuracy [%]", 2)},
    "alpha-min": {"": ("alpha_min", "global accuracy [%]", 2)},
    "epsilon": {"": ("epsilon", "global accuracy [%]", 2)},
    "gamma": {"": ("gamma", "global accuracy [%]", 2)},
    "epsilon-search": {"": ("epsilon", "global accuracy [%]", 1)},
    "equal": {"": ("accuracy of the last five rounds [%]", "", 2)},
    "curves": {"": ("round", "global accuracy [%]", 2), "-domains": ("round", "accuracy [%]", 8)},
}


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    """One folder for all names, which share their runs."""
    return tmp_path_factory.mktemp("reproduced")


@pytest.mark.parametrize("name", PLANS)
def test_a_name_has_its_rows_its_axes_and_the_right_means(name, out, minidigits_root):
    plan, seeds = PLANS[name], SEEDS.get(name, (0,))
    plan = replace(plan, methods=plan.methods[: MOST.get(name)])
    settings = (*TINY, f"data.root={minidigits_root}")
    wish = Wish(plan, out, seeds, settings, quick=True, trials=6)
    log = Log.begin(wish.files.log, "a test")
    assert fulfil(wish, Collection(Console(file=io.StringIO()), log, 2, False)) == []
    product, _ = write_from_csv(plan, wish.files.rows)
    with wish.files.rows.open(newline="") as file:
        rows = list(csv.DictReader(file))
    runs = {"epsilon-search": 6, "equal": len(plan.methods)}.get(name, len(plan.variants()))
    assert len(rows) == runs * len(plan.bases) * len(seeds)
    assert {f"{domain}_last5" for domain in DOMAINS} <= rows[0].keys()
    found = {
        ending: (figure.axes[0].get_xlabel(), figure.axes[0].get_ylabel(), len(figure.axes))
        for ending, figure in product.figures.items()
    }
    assert found == AXES.get(name, {})
    if name == "table-digits":
        _check_means(rows, wish.files.rows.with_suffix(".md").read_text())


def _check_means(rows, page):
    """Compute every cell of the first table a second way."""
    values = defaultdict(list)
    for row in rows:
        for column in (*(f"{domain}_best" for domain in DOMAINS), "best"):
            values[row["label"], column].append(float(row[column]))
    first = page.partition("**digits, protocol fair: what")[0]
    for label in dict.fromkeys(row["label"] for row in rows):
        [line] = re.findall(rf"^\| {re.escape(label)} \| (.*) \|$", first, re.M)
        cells = [re.sub(r"\*\*|</?u>", "", cell) for cell in line.split(" | ")]
        expected = []
        for column in (*(f"{domain}_best" for domain in DOMAINS), "best"):
            one, other = values[label, column]
            mean, std = (one + other) / 2, abs(one - other) / sqrt(2)
            expected.append(f"{mean:.2f} ({std:.2f})")
        assert cells == expected
