"""Write docs/results.md and docs/research-log.md anew from results/: `python docs/make_results.py`.

Every name that `dapperfl reproduce` knows, and minidigits, gets the tables of its rows in results/
between its marks on the page of results, and its figures in docs/images/. Every file of
results/research/ gets its table in the log. Text between marks is made; all other text is written
by hand and stays.
"""

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean

from dapperfl.lab.compare.collect import rounds_beside
from dapperfl.lab.compare.formats import to_markdown
from dapperfl.lab.compare.log import origin
from dapperfl.lab.compare.output import comparison, standard_tables
from dapperfl.lab.compare.paired import Difference, difference
from dapperfl.lab.compare.rows import Row, read_rows
from dapperfl.lab.compare.series import Series, series_of
from dapperfl.lab.compare.tables import aside_table, mean_std
from dapperfl.lab.compare.unseen import unseen_table
from dapperfl.lab.groups import spread
from dapperfl.lab.reproduce.drawing import draw_seeds
from dapperfl.lab.reproduce.paper import paper_table
from dapperfl.lab.reproduce.plans import PLANS
from dapperfl.lab.reproduce.product import Product
from dapperfl.lab.reproduce.render import render

ROOT = Path(__file__).resolve().parents[1]
PAGE, RESULTS, IMAGES = ROOT / "docs/results.md", ROOT / "results", ROOT / "docs/images"
LOG, RESEARCH = ROOT / "docs/research-log.md", RESULTS / "research"
COMPARED = {"minidigits": ROOT / "experiments/minidigits.toml"}  # by `dapperfl compare`
MAIN = {"digits": "table-digits", "office": "table-office"}  # what the summary is made of
FAIR = {base: f"{name}-fair" for base, name in MAIN.items()}
OURS = "dapperfl:default"
# What has to manage with the same devices.
UNEQUAL = ["heterofl", "fedrolex", "fedmp", "nefl", "feddrop", "fedavg_capable", "fedavg_small"]
# Where `equal` has not been run yet: rows of the log with the same ingredients, X lr.02 mean.1.
TRIED = {"digits": "digits-3"}
FUSION = ("alpha0", "alpha-min", "epsilon")  # sweeps of what matters in the first rounds alone
Table = Mapping[str, Series]  # by label
GREY = "#999999"


def published(folder: Path = RESULTS) -> dict[str, Path]:
    """Find the rows of every name, such as table-digits or table-digits-fair."""
    known = "|".join(map(re.escape, [*PLANS, *COMPARED]))
    found = {path.stem: path for path in sorted(folder.glob("*.csv"))}
    return {name: path for name, path in found.items() if re.fullmatch(rf"({known})(-fair)?", name)}


def section(name: str, path: Path, images: Path = IMAGES) -> str:
    """Return the tables of a name, and draw its figures."""
    product = rendered(name, path)
    parts = [to_markdown(table) for table in product.document.tables]
    parts += pictures(name, product, images)
    parts += [f"{line}\n" for line in origin(path.with_suffix(".json"))]
    remarks = "".join(f"- {remark}\n" for remark in product.document.remarks)
    return "\n".join([*parts, remarks] if remarks else parts)


def rendered(name: str, path: Path) -> Product:
    """Return the tables and figures of a name."""
    if name in COMPARED:
        return Product(comparison(read_rows(path)))
    beside = rounds_beside(path)
    rounds = read_rows(beside) if beside.exists() else []
    return render(PLANS[name.removesuffix("-fair")], read_rows(path), rounds)


def pictures(name: str, product: Product, images: Path) -> Iterator[str]:
    """Draw the figures of a name, and yield what shows them on the page."""
    for ending, figure in product.figures.items():
        picture = images / f"{name}{ending}.png"
        figure.savefig(picture)
        yield f"![{product.document.title}](images/{picture.name})\n"


def curves(files: Sequence[Path], images: Path) -> str:
    """Draw the learning curves of the main tables, whose rounds they are made of."""
    plan = PLANS["curves"]
    labels = [variant.label for variant in plan.variants()]
    rows = [row for path in files for row in read_rows(path) if row["label"] in labels]
    beside = [row for path in files for row in read_rows(rounds_beside(path))]
    rounds = [row for row in beside if row["label"] in labels]
    return "\n".join(pictures(plan.name, render(plan, rows, rounds), images))


def by_label(rows: Sequence[Row]) -> Table:
    """Put the seeds of a method together, in the order of the table."""
    return {each.label: each for each in series_of(rows)}


def summary(tables: dict[str, Table]) -> str:
    """Return one line a method: accuracy beside the paper's, and what it costs."""
    head = [""]
    for base in tables:
        head += [f"{base}: last five", "best round", "the paper's best"]
    head += ["sent", "training FLOPs"]
    lines = [_line(head), "|---|" + "---:|" * (len(head) - 1)]
    for label in dict.fromkeys(label for table in tables.values() for label in table):
        lines.append(_line([label, *_cells(label, tables)]))
    return "\n".join(lines) + "\n"


def _cells(label: str, tables: dict[str, Table]) -> Iterator[str]:
    for base, table in tables.items():
        if label not in table:
            yield from ("", "", "")
            continue
        yield from (mean_std(table[label].over(mark), 1) for mark in ("last5", "best"))
        printed = paper_table("accuracy", base).rows.get(label.partition(":")[0])
        yield f"{printed['global'].mean:.1f}" if printed else ""
    for column in ("bytes_up", "flops"):
        shares = []
        for table in tables.values():
            if label in table and "fedavg" in table:
                ours, full = (table[each].over(column).mean for each in (label, "fedavg"))
                shares.append(100 * ours / full)
        yield f"{fmean(shares):.0f} %" if shares else ""


def goals(tables: dict[str, Table], *, printed: bool = True) -> str:
    """Return how far our method is above what it wants to be above, on each benchmark.

    Args:
        tables: The methods of each benchmark.
        printed: Whether the paper's own number is among it, which is of protocol `paper`.
    """
    lines = [_line(["points above", *tables]), "|---|" + "---:|" * len(tables)]
    found = {base: _margins(table) for base, table in tables.items() if OURS in table}
    if printed:
        for base, margins in found.items():
            margins["the paper's DapperFL, best round"] = _above_paper(base, tables[base][OURS])
    for goal in dict.fromkeys(goal for margins in found.values() for goal in margins):
        lines.append(_line([goal, *(found.get(base, {}).get(goal, "") for base in tables)]))
    return "\n".join(lines) + "\n"


def _margins(table: Table) -> dict[str, str]:
    """Return how far our method is above each of those it is held against."""
    last = table[OURS].by_seed("last5")
    return {
        f"{label}, last five rounds": _judged(difference(last, table[label].by_seed("last5")))
        for label in ("fedavg", *UNEQUAL)
        if label in table
    }


def _above_paper(base: str, ours: Series) -> str:
    """Return how far our best round is above the one that the paper prints."""
    printed = paper_table("accuracy", base).rows["dapperfl"]["global"].mean
    return _judged(Difference(ours.over("best").mean - printed, None, len(ours.seeds)))


def at_equal(files: Mapping[str, Path], research: Path = RESEARCH) -> str:
    """Return how far our method is above others with all its ingredients, each at its best rate."""
    found = {f"{base}, kept aside": _tried(research / f"{n}.csv") for base, n in TRIED.items()}
    if "equal" in files:
        rows = read_rows(files["equal"])
        for base in dict.fromkeys(row["base"] for row in rows):
            found[f"{base}, test"] = _by_method([row for row in rows if row["base"] == base])
    lines = [_line(["points above", *found]), "|---|" + "---:|" * len(found)]
    for label in ["fedavg", *UNEQUAL]:
        if any(label in accuracies for accuracies in found.values()):
            cells = [_above(accuracies, label) for accuracies in found.values()]
            lines.append(_line([label, *cells]))
    return "\n".join(lines) + "\n"


Accuracies = Mapping[str, Mapping[int, float]]  # of each method, by seed


def _above(found: Accuracies, label: str) -> str:
    return _judged(difference(found[OURS], found[label])) if label in found else ""


def _by_method(rows: Sequence[Row]) -> Accuracies:
    """Return the last five rounds of each method, whose label ends with its rate."""
    return {each.label.partition(" lr=")[0]: each.by_seed("last5") for each in series_of(rows)}


def _tried(path: Path) -> Accuracies:
    names = {"default": OURS, "fedavg r": "fedavg", "small r": "fedavg_small"}
    best = _best(read_rows(path))
    return {name: best[label].by_seed("validation") for label, name in names.items()}


def _best(rows: Sequence[Row]) -> dict[str, Series]:
    """Return each method at its best learning rate, of those that were run with all seeds."""
    every = [each for each in series_of(rows) if each.label.endswith(" mean.1")]
    most = max(len(each.seeds) for each in every)
    found: dict[str, Series] = {}
    for each in every:
        name = each.label.partition(" lr")[0]
        if len(each.seeds) < most:
            continue
        if name not in found or _aside(each) > _aside(found[name]):
            found[name] = each
    return found


def _aside(series: Series) -> float:
    return series.over("validation").mean


def chance(files: Mapping[str, Path]) -> str:
    """Return how far runs of one seed are apart that differ in how they fuse, and in nothing else.

    A run that several sweeps share counts once.
    """
    head = ["", "runs", "mean", "std", "lowest", "highest"]
    lines = [_line(head), "|---|" + "---:|" * (len(head) - 1)]
    found: dict[str, dict[str, float]] = {}
    for row in (row for name in FUSION if name in files for row in read_rows(files[name])):
        title = f"{row['base']}, {row['method']}:{row['preset']}, seed {row['seed']}"
        found.setdefault(title, {})[row["id"]] = float(row["last5"])
    for title, runs in found.items():
        own = spread(runs.values())
        numbers = (f"{own.mean:.1f}", f"{own.std or 0:.1f}", f"{own.low:.1f}", f"{own.high:.1f}")
        lines.append(_line([title, str(own.count), *numbers]))
    return "\n".join(lines) + "\n"


def _judged(found: Difference | None) -> str:
    if found is None:
        return "no common seed"
    seeds = "seed" if found.count == 1 else "seeds"
    return f"{found} ({found.count} {seeds}), {'met' if found.mean > 0 else '**missed**'}"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def draw(tables: dict[str, Table], path: Path) -> None:
    """Draw every seed of every method as a dot, and their mean as a line."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    labels = list(dict.fromkeys(label for table in tables.values() for label in table))
    size = (5.2 * len(tables), 1.2 + 0.3 * len(labels))
    figure = Figure(figsize=size, layout="constrained", dpi=140)
    FigureCanvasAgg(figure)
    grid = figure.subplots(1, len(tables), sharey=True, squeeze=False)[0]
    for axes, (base, table) in zip(grid, tables.items(), strict=True):
        for place, label in enumerate(labels):
            values = list(table[label].by_seed("last5").values()) if label in table else []
            draw_seeds(axes, place, values, ours=label.startswith("dapperfl"))
        if "fedavg" in table:
            level = table["fedavg"].over("last5").mean
            axes.axvline(level, color=GREY, lw=1, ls="--", zorder=0)
        axes.set_title(base)
        axes.set_xlabel("accuracy of the last five rounds [%], mean over domains")
        axes.grid(axis="x", alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    grid[0].set_yticks(range(len(labels)), labels)
    grid[0].invert_yaxis()
    figure.savefig(path)


def insert(page: str, name: str, text: str) -> str:
    """Return the page with a text between the marks of a name."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    if begin not in page or end not in page:
        raise SystemExit(f"there is no place for {name} on its page: write {begin} and {end}")
    before, _, rest = page.partition(begin)
    return f"{before}{begin}\n{text}{end}{rest.partition(end)[2]}"


def made(page: str, images: Path = IMAGES, folder: Path = RESULTS) -> str:
    """Return the page as the rows would have it, and draw its figures."""
    files = published(folder)
    tables, fair = (
        {base: by_label(read_rows(files[name])) for base, name in names.items() if name in files}
        for names in (MAIN, FAIR)
    )
    if fair:
        page = insert(page, "goals-fair", goals(fair, printed=False))
    if tables:
        draw(tables, images / "results.png")
        text = f"{summary(tables)}\n![every seed of every method](images/results.png)\n"
        page = insert(page, "summary", text)
        page = insert(page, "goals", goals(tables))
        page = insert(page, "at-equal", at_equal(files))
        page = insert(
            page, "curves", curves([files[n] for n in MAIN.values() if n in files], images)
        )
    if any(name in files for name in FUSION):
        page = insert(page, "chance", chance(files))
    for name, path in files.items():
        page = insert(page, name, section(name, path, images))
    return page


def logged(page: str, folder: Path = RESEARCH) -> str:
    """Return the log with the table of every file of what was tried."""
    for path in sorted(folder.glob("*.csv")):
        rows = read_rows(path)
        [about] = {f"{r['rounds']} rounds, {r['precision']}, {r['machine']}" for r in rows}
        title = f"{rows[0]['base']}, {about}"
        if path.stem.startswith("folder-"):
            tables = standard_tables(series_of(rows), f"{path.stem}, {about}", OURS)
        elif path.stem.startswith("unseen-"):
            tables = [unseen_table(series_of(rows), title, "fedavg")]
        else:
            baseline = "fedavg" if any(row["label"] == "fedavg" for row in rows) else None
            tables = [aside_table(series_of(rows), title, baseline)]
        page = insert(page, path.stem, "\n".join(map(to_markdown, tables)))
    return page


if __name__ == "__main__":
    PAGE.write_text(made(PAGE.read_text()))
    LOG.write_text(logged(LOG.read_text()))
    sys.stdout.write(f"written to {PAGE} and {LOG}\n")
