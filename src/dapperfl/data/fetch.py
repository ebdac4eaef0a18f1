"""Getting a benchmark: downloads what is public, then prepares all that is there."""

import os
from dataclasses import replace
from functools import partial
from pathlib import Path

from dapperfl.data.catalogue import origins
from dapperfl.data.download import Patience, download
from dapperfl.data.prepare import Progress, Report, prepare, silent
from dapperfl.data.prepared import data_root
from dapperfl.errors import DataError

MIRROR = "DAPPERFL_MIRROR"  # the environment variable that names one


def fetch(
    name: str,
    *,
    root: Path | None = None,
    patience: Patience | None = None,
    progress: Progress = silent,
) -> Report:
    """Download the official files of a benchmark into `<root>/downloads`, and prepare them.

    What is not public, and what could not be downloaded, may be put into that folder by hand.

    Args:
        name: of the benchmark.
        root: of prepared data; None for the default one.
        patience: with the servers; by default, with the mirror that DAPPERFL_MIRROR names.
        progress: told what is worked on, how much is done, and of how much.

    Raises:
        ConfigError: there is no such benchmark.
    """
    patience = patience or Patience(mirror=os.environ.get(MIRROR) or None)
    folder = data_root(root) / "downloads" / name
    troubles = []
    for domain, origin in origins(name).items():
        try:
            for item in origin.downloads:
                seen = partial(progress, f"{domain} {item.name}")
                download(item, folder / domain, patience=patience, seen=seen)
        except DataError as error:
            troubles.append(f"{domain}: {error}")
    folder.mkdir(parents=True, exist_ok=True)
    report = prepare(name, folder, root=root, progress=progress)
    return replace(report, troubles=tuple(troubles))
