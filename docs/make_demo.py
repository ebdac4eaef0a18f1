"""Put a demo run on the front page: `python docs/make_demo.py runs/demo`.

Copies the run's records to results/demo/, draws docs/images/demo.png, and writes the table in
README.md between its marks. Without a run folder it redraws from results/demo/.
"""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
KEPT = ROOT / "results" / "demo"
BEGIN, END = "<!-- demo: begin -->", "<!-- demo: end -->"
# Okabe and Ito's colours, which the colour-blind can tell apart.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7")


def table(summary: dict[str, Any]) -> str:
    """Return the front page's table from a run's summary."""
    dense = summary["dense"]["parameters"]
    lines = [
        "| device level ρ | parameters | share | upload | MACs | accuracy of its net |",
        "|---|---|---|---|---|---|",
    ]
    for level in summary["levels"]:
        cells = [
            f"{level['rho']:g}",
            f"{level['parameters']:,}",
            f"{100 * level['parameters'] / dense:.1f} %",
            f"{level['upload_bytes'] / 1e3:,.0f} kB",
            f"{level['macs'] / 1e6:.1f} M",
            f"{level['mean_accuracy']:.1f} %",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    last = ", ".join(f"{d} {m['last']:.1f} %" for d, m in summary["domain_accuracy"].items())
    made = summary["versions"]
    return "\n".join(
        [
            *lines,
            "",
            f"Global model after {summary['rounds']} rounds: {last}; "
            f"mean {summary['global_accuracy']['last']:.1f} %. "
            f"`make demo`, seed {summary['seed']}, torch {made['torch']}, {made['threads']} "
            f"threads, {summary['seconds']:.0f} s of training and evaluation.",
        ]
    )


def draw(rounds: list[dict[str, Any]], summary: dict[str, Any], path: Path) -> None:
    """Draw accuracy by round, and what each level's net costs and knows."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 3.6), layout="constrained", dpi=140)
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    numbers = [line["round"] for line in rounds]
    for colour, domain in zip(COLOURS, rounds[0]["accuracy"], strict=False):
        values = [line["accuracy"][domain] for line in rounds]
        left.plot(numbers, values, color=colour, marker="o", markersize=3, label=domain)
    left.set(xlabel="round", ylabel="test accuracy [%]", ylim=(0, 100))
    left.set_title("One model, four domains, ten unequal devices", fontsize=11)
    left.legend(frameon=False, loc="lower right")
    left.grid(alpha=0.3)
    levels = summary["levels"]
    places = range(len(levels))
    shares = [100 * level["parameters"] / summary["dense"]["parameters"] for level in levels]
    bars = right.bar(places, shares, color="#0072B2", alpha=0.8)
    right.bar_label(bars, [f"{level['parameters'] / 1e3:.0f} k" for level in levels], fontsize=8)
    right.set_xticks(list(places), [f"{level['rho']:g}" for level in levels])
    right.set(xlabel="level: share ρ of the parameters removed", ylabel="parameters left [%]")
    right.set_ylim(0, 112)
    right.set_title("Physically smaller nets", fontsize=11)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path)


def readme_with(text: str, summary: dict[str, Any]) -> str:
    """Return the front page with its table written anew."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table(summary)}\n{END}{after}"


def main() -> None:
    """Copy, draw and write."""
    if len(sys.argv) > 1:
        KEPT.mkdir(parents=True, exist_ok=True)
        for name in ("summary.json", "rounds.jsonl", "config.toml"):
            shutil.copy(Path(sys.argv[1]) / name, KEPT / name)
    summary = json.loads((KEPT / "summary.json").read_text())
    rounds = [json.loads(line) for line in (KEPT / "rounds.jsonl").read_text().splitlines()]
    draw(rounds, summary, ROOT / "docs" / "images" / "demo.png")
    readme = ROOT / "README.md"
    readme.write_text(readme_with(readme.read_text(), summary))


if __name__ == "__main__":
    main()
