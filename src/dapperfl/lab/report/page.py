"""The document: a section for each benchmark, with what a stranger needs to read it."""

from base64 import b64encode
from collections.abc import Callable, Iterable
from dataclasses import replace
from hashlib import sha256
from importlib.resources import files

from dapperfl import __version__
from dapperfl.lab.groups import MARKS, Group
from dapperfl.lab.report.curves import learning_curves
from dapperfl.lab.report.finals import final_accuracy
from dapperfl.lab.report.fleet import allocations
from dapperfl.lab.report.heatmap import kept_channels
from dapperfl.lab.report.markup import Markup, element, join
from dapperfl.lab.report.origin import origin, state
from dapperfl.lab.report.pens import legend
from dapperfl.lab.report.prices import prices
from dapperfl.lab.report.tables import accuracy_table, cost_table, level_table

_ABOUT = (
    "Devices train one net together without showing each other their pictures; weak devices train "
    "a smaller part of it."
)
_WORDS = (
    ("domain", "one kind of pictures, such as one camera or one style; each device has one."),
    ("level ρ", "the share of the net's parameters that a device is too weak for: a device of "
     "level 0.8 trains a net with a fifth of them."),
    ("global accuracy", "the mean of the accuracies on all domains' test pictures, each domain "
     "counting the same."),
    ("round", "every chosen device trains on its own pictures, then the server puts the nets "
     "together."),
    ("seed", "a repetition with other random draws. Lines are means over seeds; bands and "
     "whiskers go from the lowest to the highest seed; tables give the standard deviation "
     "(of a sample)."),
)  # fmt: skip


def render(groups: list[Group]) -> str:
    """Return the whole document."""
    style, script = (_resource(name) for name in ("style.css", "script.js"))
    homes = list(dict.fromkeys(group.benchmark for group in groups))
    title = f"Federated learning on {', '.join(homes)}"
    headings = [element("h2", home) for home in homes] if len(homes) > 1 else [Markup()]
    sections = [
        _section(f"b{at}", heading, [group for group in groups if group.benchmark == home])
        for at, (home, heading) in enumerate(zip(homes, headings, strict=True))
    ]
    runs = sum(len(group.runs) for group in groups)
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", http_equiv="Content-Security-Policy", content=_policy(script)),
        element("title", title),
        element("style", Markup(style)),
    )
    count = f"{runs} run{'s' if runs > 1 else ''}"
    body = element(
        "body",
        element("header", element("h1", title), element("p", f"A report on {count}. {_ABOUT}")),
        element("main", *sections, _glossary()),
        element("footer", element("p", f"Made with dapperfl {__version__}.")),
        element("script", Markup(script)),
    )
    return f"<!DOCTYPE html>\n{element('html', head, body, lang='en')}\n"


def _resource(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def _policy(script: str) -> str:
    """Allow our own script and nothing else: no network, whatever a folder's names contain."""
    digest = b64encode(sha256(script.encode()).digest()).decode()
    return (
        f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; "
        f"script-src 'sha256-{digest}'"
    )


def _section(key: str, heading: Markup, groups: list[Group]) -> Markup:
    drawn = [_honest(group) for group in groups if group.counted]
    parts = _blocks(drawn) if drawn else {}
    parts["Runs, settings and versions"] = (
        "What was run, and what is needed to run it again.",
        lambda: origin(groups),
    )
    links, blocks = [], []
    for at, (title, (about, content)) in enumerate(parts.items()):
        anchor = f"{key}-{at}"
        links.append(element("li", element("a", title, href=f"#{anchor}")))
        blocks.append(
            element("section", element("h3", title), element("p", about), content(), id=anchor)
        )
    return element(
        "article",
        heading,
        _facts(groups, drawn),
        element("nav", element("ul", *links)),
        *blocks,
    )


def _honest(group: Group) -> Group:
    """Say wherever a group is named that its numbers are not final."""
    return group if group.finished else replace(group, label=f"{group.label} (unfinished)")


def _blocks(groups: list[Group]) -> dict[str, tuple[str, Callable[[], Markup]]]:
    """Return title, explanation and content of what can be said about groups with rounds."""
    domains = tuple(dict.fromkeys(domain for group in groups for domain in group.domains))
    runs = [run for group in groups for run in group.counted]
    names = legend(groups)
    return {
        "Learning curves": (
            "Accuracy of the global model after each round, on test pictures, or of runs with "
            "data.blind on pictures kept aside. Lines are means over seeds; bands go from the "
            "lowest to the highest seed.",
            lambda: join(names, learning_curves(groups, domains)),
        ),
        "Final accuracy by domain": (
            "Numbers are means over seeds, with the standard deviation in brackets. In each "
            "column the highest is bold, the second underlined. A domain's best round is its own.",
            lambda: join(names, _finals(groups, domains)),
        ),
        "Accuracy against cost": (
            "Further up is better, further left is cheaper. A level ρ leaves out that share of "
            "the net's parameters, for devices that are too weak for more; its compact net is cut "
            "out of the final global model. Points are means over seeds, whiskers go from the "
            "lowest to the highest.",
            lambda: join(names, prices(groups), cost_table(groups), level_table(groups)),
        ),
        "Devices, domains and levels": (
            "How the pictures and the levels are spread over the devices.",
            lambda: allocations(runs),
        ),
        "Channels that each level kept": (
            "Strong blue: the channel stayed; faint: it was cut off; blank: nobody of the level "
            "trained a cut net in that round. Shown is the level's first device of each round.",
            lambda: _kept(groups),
        ),
    }


def _finals(groups: list[Group], domains: tuple[str, ...]) -> Markup:
    tables = [accuracy_table(groups, domains, mark) for mark in MARKS]
    return element("div", final_accuracy(groups, domains), element("div", *tables), class_="beside")


def _kept(groups: list[Group]) -> Markup:
    found = {group.label: kept_channels(group) for group in groups}
    blocks = [block for block in found.values() if block is not None]
    whole = [label for label, block in found.items() if block is None]
    if whole:
        note = "No cut nets are recorded of "
        blocks.append(element("p", note, element("em", ", ".join(whole)), "."))
    return join(*blocks)


def _facts(groups: list[Group], drawn: list[Group]) -> Markup:
    """Say in a few lines what was compared, who is ahead, and what is missing."""
    settings = [group.settings for group in groups]
    net = _several(f"{s['net.name']} of width {s['net.width']}" for s in settings)
    rounds = _several(str(s["rounds"]) for s in settings)
    fleet = _several(str(len(group.runs[0].devices)) for group in groups)
    lines = [element("p", f"{net}, {fleet} devices, {rounds} rounds.")]
    finished = [group for group in drawn if group.finished]
    if finished:
        lines.append(_winner(finished))
    late = [(group, run) for group in groups for run in group.runs if run.summary is None]
    if late:
        items = [element("li", f"{g.label}, seed {run.seed}: {state(run)}") for g, run in late]
        warning = element("p", "Not finished yet; numbers are final only where a run is:")
        lines.append(element("div", warning, element("ul", *items), class_="late"))
    return element("div", *lines, class_="facts")


def _winner(groups: list[Group]) -> Markup:
    order = sorted(groups, key=lambda group: -group.mark("last5").mean)
    first, mark = order[0], order[0].mark("last5")
    parts = [
        element("strong", first.label),
        f" has the highest global accuracy over the last five rounds, {mark.mean:.1f} %"
        if len(order) > 1
        else f" has a global accuracy of {mark.mean:.1f} % over the last five rounds",
        f" ({f'mean of {mark.count} seeds' if mark.count > 1 else 'one seed'})",
    ]
    if len(order) > 1:
        second = order[1].mark("last5")
        parts += [", before ", element("strong", order[1].label), f" with {second.mean:.1f} %"]
    return element("p", *parts, ".")


def _several(values: Iterable[str]) -> str:
    return " or ".join(dict.fromkeys(values))


def _glossary() -> Markup:
    entries = [join(element("dt", word), element("dd", meaning)) for word, meaning in _WORDS]
    return element("aside", element("h2", "Words"), element("dl", *entries))
