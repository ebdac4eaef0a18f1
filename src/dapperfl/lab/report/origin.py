"""Where the numbers come from: runs, settings, versions."""

from dapperfl.lab.fields import show
from dapperfl.lab.gather import Run
from dapperfl.lab.groups import Group
from dapperfl.lab.report.markup import Markup, element
from dapperfl.lab.report.tables import folded, table


def origin(groups: list[Group]) -> Markup:
    """Return the runs, what differs between them, what they share, and their versions."""
    runs = [run for group in groups for run in group.runs]
    parts = [_runs(groups), _differences(groups), _shared(runs), _versions(runs)]
    return element("div", *parts, class_="long")


def state(run: Run) -> str:
    """Say how far a run is."""
    if run.summary is not None:
        return "finished"
    return f"unfinished: round {len(run.lines)} of {run.rounds}"


def _runs(groups: list[Group]) -> Markup:
    rows = []
    for group in groups:
        for run in sorted(group.runs, key=lambda run: run.seed):
            counted = "yes" if run in group.counted else "no"
            absent = sum(len(line.left_out) for line in run.lines)
            rows.append([group.label, run.seed, state(run), counted, absent, run.path])
    head = ["", "seed", "state", "in the numbers", "clients left out", "folder"]
    return table("Runs", head, rows)


def _written(run: Run, key: str) -> str:
    return show(run.settings[key]) if key in run.settings else "–"


def _keys(runs: list[Run]) -> list[str]:
    return list(dict.fromkeys(key for run in runs for key in run.settings))


def _values(runs: list[Run], key: str) -> list[str]:
    return list(dict.fromkeys(_written(run, key) for run in runs))


def _differences(groups: list[Group]) -> Markup:
    """Return a column a group, of the settings that are not the same everywhere."""
    runs = [run for group in groups for run in group.runs]
    keys = [key for key in _keys(runs) if len(_values(runs, key)) > 1]
    rows = [[key, *(", ".join(_values(list(group.runs), key)) for group in groups)] for key in keys]
    if not rows:
        return Markup()
    return table("Settings that differ", ["key", *(group.label for group in groups)], rows)


def _shared(runs: list[Run]) -> Markup:
    keys = [key for key in _keys(runs) if len(_values(runs, key)) == 1]
    rows = [[key, _written(runs[0], key)] for key in keys]
    title = "Settings that all runs share"
    return folded(title, table(title, ["key", "value"], rows))


def _versions(runs: list[Run]) -> Markup:
    names = list(dict.fromkeys(name for run in runs for name in run.versions))
    rows = [
        [name, ", ".join(dict.fromkeys(str(run.versions.get(name, "–")) for run in runs))]
        for name in names
    ]
    return table("Versions and machine, as the runs began", ["what", "value"], rows)
