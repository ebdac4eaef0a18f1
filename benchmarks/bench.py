"""Measure this package beside what people use today: `make bench`.

    python -m benchmarks.bench [--quick] [--only PART] [--data DIR] [--out FILE]

Every row is a ratio of two things measured in this one run. Rows go to the screen and, with a
plot, to benchmarks/results/<machine>.json and .png. A part that fails does not take the others
with it. The parts on a GPU run where there is one.
"""

import argparse
import importlib
import logging
import sys
import time
import traceback
from importlib.util import find_spec
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that it runs as a script, too

from benchmarks.measure import ROOT, Options, Row, say
from dapperfl import environment

PARTS = (  # modules of benchmarks.rows
    *("overhead", "steps", "upload", "fold", "memory", "batches", "start", "scale"),
    *("gpu_rounds", "gpu_steps"),
)


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="tiny sizes: only shows that it works")
    parser.add_argument("--only", action="append", choices=PARTS, help="one part; may be repeated")
    parser.add_argument("--data", type=Path, help="folder of the real images; see docs/data.md")
    parser.add_argument("--out", type=Path, help="where to write the JSON, and the plot beside it")
    return parser.parse_args()


def part(name: str, options: Options, rows: list[Row], notes: list[str]) -> bool:
    """Measure one part, row by row; return whether it came to its end."""
    from benchmarks.results import line

    say(f"\n{name}")
    began = time.perf_counter()
    try:
        for found in importlib.import_module(f"benchmarks.rows.{name}").measure(options):
            if isinstance(found, Row):
                rows.append(found)
                say(f"  {line(found, 0)}")
            else:
                notes.append(f"{name}: {found}")
                say(f"  {found}")
    except Exception as error:
        # The border of a part: hours of other measurements are not to be lost with it.
        traceback.print_exc()
        notes.append(f"{name}: failed, {type(error).__name__}: {error}")
        say(f"  failed: {error}")
        return False
    say(f"  ({time.perf_counter() - began:.0f} s)")
    return True


def destination(given: argparse.Namespace) -> Path | None:
    """Say where to write; a part of the bench does not replace the whole one's results."""
    from benchmarks.results import machine_name

    if given.out or given.quick or given.only:
        out: Path | None = given.out
        return out
    return ROOT / "benchmarks" / "results" / f"{machine_name()}.json"


def main() -> int:
    """Measure what was asked for, and write it down."""
    given = parse()
    environment.prepare()  # as the command line does; before torch
    from benchmarks.results import facts, plot, table, write

    logging.basicConfig(level=logging.WARNING, format="  %(message)s")
    words = [f"--only {name}" for name in given.only or ()] + ["--quick"] * given.quick
    about = facts(" ".join(["python -m benchmarks.bench", *words]))
    path, rows, notes, well = destination(given), list[Row](), list[str](), True
    for name in given.only or PARTS:
        well &= part(name, Options(given.quick, given.data), rows, notes)
        if path:
            write(path, about, rows, notes)
    if given.quick:
        notes.append("sizes are tiny: the targets are for the whole bench")
    say("\n" + table(rows))
    for note in notes:
        say(f"- {note}")
    if path is None:
        say("\nnot written down: only a part; --out FILE does it")
        return 0 if well else 1
    say(f"\nwritten to {path}")
    if find_spec("matplotlib") is None:
        say("no plot: it needs matplotlib (pip install matplotlib)")
    else:
        plot(rows, f"dapperfl {about['dapperfl']} on {about['machine']}", path.with_suffix(".png"))
        say(f"drawn in {path.with_suffix('.png')}")
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
