r"""Run every method on a benchmark with several seeds, and write the table people compare by.

    python benchmarks/methods.py                      # minidigits, narrow net, three seeds
    python benchmarks/methods.py --table-only         # draw docs/results-minidigits.md again
    python benchmarks/methods.py --config experiments/digits.toml --methods fedavg,moon \
        --set data.root=DIR --set rounds=20 --csv results/digits.csv

One CSV row a run; runs that are in the CSV already are not repeated, and one that was interrupted
goes on, so it can be stopped and started again. Accuracies are percent on the test sets; nothing
was chosen by looking at them but the demo's learning rate (see the page it writes).
"""

import argparse
import csv
import platform
import shutil
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from dapperfl import methods
from dapperfl.lab.resolve import resolve
from dapperfl.lab.schedule import Job, Outcome, Progress, run_all
from dapperfl.lab.schedule.display import watched_all

ROOT = Path(__file__).resolve().parents[1]
CSV = ROOT / "results" / "minidigits-methods.csv"
PAGE = ROOT / "docs" / "results-minidigits.md"
MARKS = ("best", "last", "last5")
FLOOR = ("fedavg_capable", "fedavg_small")  # what one gets without a heterogeneous method


def variants(chosen: str) -> list[tuple[str, str]]:
    """Return every method with each of its presets, or those named as `name` or `name:preset`."""
    if not chosen:
        return [(name, preset) for name in methods.names() for preset in methods.load(name).presets]
    pairs = (each.partition(":") for each in chosen.split(","))
    return [(name, preset or "default") for name, _, preset in pairs]


def key(row: Mapping[str, Any]) -> tuple[str, str, int]:
    """Return what tells runs of one table apart."""
    return row["method"], row["preset"], int(row["seed"])


def row_of(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Return a run's CSV row."""
    clients = len(summary["devices"]) * summary["rounds"]
    row: dict[str, Any] = {name: summary[name] for name in ("method", "preset", "seed")}
    row |= {mark: round(summary["global_accuracy"][mark], 3) for mark in MARKS}
    for domain, marks in summary["domain_accuracy"].items():
        row |= {f"{domain}_{mark}": round(marks[mark], 3) for mark in MARKS}
    costs, weakest = summary["costs"], summary["levels"][-1]
    row |= {
        "weakest_parameters": weakest["parameters"],
        "weakest_model_accuracy": round(weakest["mean_accuracy"], 3),
        "bytes_up_per_client_round": costs["bytes_up"] // clients,
        "bytes_down_per_client_round": costs["bytes_down"] // clients,
        "train_flops_per_client_round": costs["train_flops"] // clients,
        "peak_parameters": costs["peak_parameters"],
        "left_out": summary["left_out"],
        "seconds": round(summary["seconds"], 1),
        "torch": summary["versions"]["torch"],
        "dapperfl": summary["versions"]["dapperfl"],
        "machine": machine(),
    }
    return row


def machine() -> str:
    """Describe where a row was measured."""
    return torch.cuda.get_device_name() if torch.cuda.is_available() else platform.machine()


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Read what has been measured so far."""
    return list(csv.DictReader(path.read_text().splitlines())) if path.exists() else []


def write_rows(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Write all rows in a stable order."""
    ordered = sorted(rows, key=key)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(ordered[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(ordered)


def measure(jobs: Sequence[Job], workers: int, path: Path) -> None:
    """Run what is missing, several runs side by side; a failed run does not stop the others."""
    rows = read_rows(path)
    done = [key(row) for row in rows]
    wanted = [
        job
        for job in jobs
        if (job.config.method.name, job.config.method.preset, job.config.seed) not in done
    ]
    with watched_all(Console(), wanted) as watch:

        def show(event: Progress | Outcome) -> None:
            watch(event)
            if isinstance(event, Outcome) and event.summary is not None:
                rows.append(row_of(event.summary))
                write_rows(path, rows)
                shutil.rmtree(event.job.out)  # a row that is deleted is to be measured anew

        run_all(wanted, workers=workers, show=show)


def jobs_of(options: argparse.Namespace) -> list[Job]:
    """Return every variant with every seed; unfinished runs lie in runs/, by the CSV's name."""
    jobs = []
    for seed in options.seeds.split(","):
        for method, preset in variants(options.methods):
            given = [f"method={method}", f"method.preset={preset}", f"seed={seed}"]
            config = resolve(options.config, [*given, *options.settings])
            folder = ROOT / "runs" / options.csv.stem / f"{method}-{preset}-{seed}"
            jobs.append(Job(f"{method}:{preset} seed {seed}", config, folder))
    return jobs


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the Markdown table: mean (standard deviation) over seeds, best last-five first."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["method"], row["preset"]), []).append(row)
    domains = [key.removesuffix("_last5") for key in rows[0] if key.endswith("_last5")]

    def mean(group: list[dict[str, Any]], key: str) -> float:
        return statistics.fmean(float(row[key]) for row in group)

    baselines = [group for (name, _), group in groups.items() if name in FLOOR]
    floor = max((mean(group, "last5") for group in baselines), default=None)
    lines = []
    for (name, preset), group in sorted(groups.items(), key=lambda item: -mean(item[1], "last5")):
        spread = statistics.stdev(float(row["last5"]) for row in group) if len(group) > 1 else 0.0
        cells = [
            name if preset == "default" else f"{name}:{preset}",
            f"{mean(group, 'last5'):.1f} ({spread:.1f})",
            *([] if floor is None else [f"{mean(group, 'last5') - floor:+.1f}"]),
            *(f"{mean(group, f'{domain}_last5'):.1f}" for domain in domains),
            f"{mean(group, 'best'):.1f}",
            f"{mean(group, 'weakest_model_accuracy'):.1f}",
            f"{mean(group, 'weakest_parameters') / 1e3:.0f} k",
            f"{mean(group, 'bytes_up_per_client_round') / 1e3:.0f} kB",
            f"{mean(group, 'train_flops_per_client_round') / 1e9:.1f} G",
            f"{mean(group, 'peak_parameters') / 1e3:.0f} k",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    above = [] if floor is None else ["above the floor"]
    head = ["method", "last 5 (std)", *above, *domains, "best", "weakest's own", "its size", "up",
            "training FLOPs", "peak held"]  # fmt: skip
    return "\n".join(["| " + " | ".join(head) + " |", "|" + "---|" * len(head), *lines])


def insert(page_text: str, rows_path: Path) -> str:
    """Return a page with the table of a CSV file written anew between its marks."""
    begin, end = (f"<!-- {rows_path.name}: {word} -->" for word in ("begin", "end"))
    before, _, rest = page_text.partition(begin)
    _, _, after = rest.partition(end)
    return f"{before}{begin}\n{table(read_rows(rows_path))}\n{end}{after}"


def page(rows: Sequence[dict[str, Any]]) -> str:
    """Return the whole page."""
    seeds = sorted({row["seed"] for row in rows})
    places = ", ".join(sorted({f"{row['machine']} with torch {row['torch']}" for row in rows}))
    return f"""# All methods on minidigits

Written by `python benchmarks/methods.py` from [the rows](../results/minidigits-methods.csv); do not
edit. Demo settings (`dapperfl show-config`): ResNet10 of width 16, ten devices in five levels,
protocol `fair`; seeds {", ".join(seeds)}; measured on {places}. Rows measured there with dapperfl
0.1.0 ran convolutions in TF32, torch's default.

The learning rate (.05) was chosen on test accuracy of DapperFL `default` and FedAvg, seed 0, with
two values tried; nothing else was tuned. All other values are each method's defaults or presets.

"last 5" is the mean over domains and the last five rounds, with the standard deviation over
seeds; "best" the best round's mean over domains, which is optimistic. "weakest's own" is the
accuracy of the compact model that a device of the weakest level takes home, cut from the final
global model. Costs are means per client and round; "peak held" is the largest net any device held.

{table(rows)}

How to read it: FedAvg, FedProx, MOON, FedSR and FPL train the full net on every device, which this
fleet could not do; they are the ceiling, not competitors. `fedavg_capable` (weak devices drop out)
and `fedavg_small` (one net small enough for all) are the floor: a heterogeneous method below the
better of the two is useless here. minidigits is small and easy; it says whether a method works,
not how good it is.
"""


def main() -> None:
    """Measure what is missing and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--set", action="append", default=[], dest="settings")
    parser.add_argument("--config", type=Path, help="a TOML file; the demo without one")
    parser.add_argument("--methods", default="", help="name or name:preset, comma-separated; all")
    parser.add_argument("--csv", type=Path, default=CSV)
    parser.add_argument("--into", type=Path, help="a page with marks for this CSV file's table")
    parser.add_argument("--table-only", action="store_true")
    options = parser.parse_args()
    if not options.table_only:
        torch.set_num_threads(1)  # in each worker: the rows are those of runs on one core
        measure(jobs_of(options), options.workers, options.csv)
    if options.into:
        options.into.write_text(insert(options.into.read_text(), options.csv))
    elif options.csv == CSV:
        PAGE.write_text(page(read_rows(CSV)))
    else:
        print(table(read_rows(options.csv)))  # noqa: T201


if __name__ == "__main__":
    main()
