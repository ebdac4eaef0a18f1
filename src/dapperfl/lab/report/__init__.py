"""Run folders → one HTML file that explains itself, needs no network and no script.

`gather` and `groups` (in `lab`) read the folders and do the statistics; here they become pictures
(inline SVG, and tiny PNGs for heat maps), tables and, in `page`, a document.
"""

import os
from collections.abc import Sequence
from pathlib import Path

from dapperfl.errors import CheckpointError
from dapperfl.lab.folder import write_atomically
from dapperfl.lab.gather import load_runs
from dapperfl.lab.groups import grouped
from dapperfl.lab.report.page import render


def write_report(paths: Sequence[Path], out: Path | None = None) -> Path:
    """Write the report on all runs in or below some folders, and return where it is.

    Args:
        paths: Run folders, or folders that have some below them.
        out: The file; by default `report.html` in the given folder, or in the folder that holds
            all given ones.

    Raises:
        CheckpointError: a folder holds no run or a damaged one, or `out` is a folder.
    """
    groups = grouped(load_runs(paths))
    place = out or Path(os.path.commonpath([path.resolve() for path in paths])) / "report.html"
    if place.is_dir():
        raise CheckpointError(f"{place} is a folder; name a file: --out {place / 'report.html'}")
    write_atomically(place, render(groups).encode())
    return place
