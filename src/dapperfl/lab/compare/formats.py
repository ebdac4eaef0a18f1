"""A table for the terminal, for a page (Markdown) and for a paper (LaTeX with booktabs)."""

import re

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from dapperfl.lab.compare.tables import Cell, Table

_STYLES = {1: "bold", 2: "underline", None: ""}
_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "–": "--",
    "−": "$-$",
    "ρ": r"$\rho$",
    "α": r"$\alpha$",
    "γ": r"$\gamma$",
    "ε": r"$\epsilon$",
    **{letter: f"\\{letter}" for letter in "&%$#_{}"},
}


def to_terminal(table: Table) -> RenderableType:
    """Return something for rich to print."""
    drawn = RichTable(
        title=Text(table.title, style="bold"), title_justify="left", box=box.SIMPLE_HEAD
    )
    first, *others = table.head
    drawn.add_column(Text(first), no_wrap=True)
    for name in others:
        drawn.add_column(Text(name), justify="right", overflow="fold")
    for row in table.rows:
        drawn.add_row(*(Text(cell.text, style=_STYLES[cell.rank]) for cell in row))
    return Group(drawn, *(Text(note, style="dim") for note in table.notes))


def to_markdown(table: Table) -> str:
    """Return a Markdown table below its title."""
    lines = [f"**{_plain(table.title)}**", ""]
    lines.append(_line([_plain(name) for name in table.head]))
    lines.append("|---|" + "---:|" * (len(table.head) - 1))
    lines += [_line([_in_markdown(cell) for cell in row]) for row in table.rows]
    for note in table.notes:
        lines += ["", note]
    return "\n".join(lines) + "\n"


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _plain(text: str) -> str:
    return re.sub(r"([|*\\<`])", r"\\\1", " ".join(text.split()))  # a row is a line


def _in_markdown(cell: Cell) -> str:
    text = _plain(cell.text)
    return {1: f"**{text}**", 2: f"<u>{text}</u>", None: text}[cell.rank]


def to_latex(table: Table) -> str:
    r"""Return a LaTeX table; it needs \usepackage{booktabs}."""
    lines = [
        r"\begin{table}[t]",
        r"\centering",
        rf"\caption{{{_escaped(table.title)}.}}",
        rf"\begin{{tabular}}{{l{'r' * (len(table.head) - 1)}}}",
        r"\toprule",
        rf"{' & '.join(map(_escaped, table.head))} \\",
        r"\midrule",
        *(rf"{' & '.join(map(_in_latex, row))} \\" for row in table.rows),
        r"\bottomrule",
        r"\end{tabular}",
        *(rf"\par\smallskip{{\footnotesize {_escaped(note)}\par}}" for note in table.notes),
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _in_latex(cell: Cell) -> str:
    text = _escaped(cell.text)
    return {1: rf"\textbf{{{text}}}", 2: rf"\underline{{{text}}}", None: text}[cell.rank]


def _escaped(text: str) -> str:
    escaped = "".join(_LATEX.get(letter, letter) for letter in text)
    signed = re.sub(r"(?<!\w)-(?=\d)", "$-$", escaped)  # a minus, not a hyphen
    return re.sub(r"^(?=[\[*])", "{}", signed)  # the end of the row before would take it as its own
