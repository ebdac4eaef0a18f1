"""One table in three formats."""

import io
import re

import pytest
from rich.console import Console

from dapperfl.lab.compare.formats import to_latex, to_markdown, to_terminal
from dapperfl.lab.compare.tables import Cell, Table, assembled

TABLE = Table(
    "50 % of a|b",
    ("", "mnist_best"),
    ((Cell("a_1 ρ=0.2"), Cell("-1.00", 1)), (Cell("[b]"), Cell("2.00 (0.10)", 2))),
    ("A note & more.",),
)


def test_markdown_marks_the_best_and_escapes_bars():
    assert to_markdown(TABLE) == (
        "**50 % of a\\|b**\n\n"
        "|  | mnist_best |\n|---|---:|\n"
        "| a_1 ρ=0.2 | **-1.00** |\n| [b] | <u>2.00 (0.10)</u> |\n\n"
        "A note & more.\n"
    )


def test_odd_names_stay_in_their_cells_of_markdown():
    table = Table("t", ("", "a\nb"), ((Cell("<i>`x"), Cell("1.00")),), ())
    assert "|  | a b |\n|---|---:|\n| \\<i>\\`x | 1.00 |\n" in to_markdown(table)


def test_latex_is_booktabs_with_every_special_letter_escaped():
    text = to_latex(TABLE)
    for part in (
        r"\caption{50 \% of a|b.}", r"\begin{tabular}{lr}", r"\toprule", r"\midrule",
        r"\bottomrule", r" & mnist\_best \\", r"a\_1 $\rho$=0.2 & \textbf{$-$1.00} \\",
        r"[b] & \underline{2.00 (0.10)} \\", r"A note \& more.",
    ):  # fmt: skip
        assert part in text, part
    assert text.count("{") == text.count("}")


def test_the_terminal_shows_brackets_as_they_are_and_the_best_in_bold():
    file = io.StringIO()
    console = Console(file=file, width=60, force_terminal=True, color_system="standard")
    console.print(to_terminal(TABLE))
    text = file.getvalue()
    assert "[b]" in text
    assert re.search(r"\x1b\[1m *-1\.00", text)  # bold
    assert re.search(r"\x1b\[4m *2\.00 \(0\.10\)", text)  # underlined


@pytest.mark.parametrize("label", ["[mine]", "*"])
def test_a_label_is_no_option_of_the_row_before(label):
    table = assembled("T", [label], {"x": [Cell("1")]})
    assert f"\n{{}}{label} & 1" in to_latex(table)
