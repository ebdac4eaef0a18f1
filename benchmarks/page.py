"""Write what was measured into docs/engine.md: python -m benchmarks.page."""

import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "engine.md"
RESULTS = ROOT / "benchmarks" / "results"
BEGIN, END = "<!-- bench: begin -->", "<!-- bench: end -->"


def section(document: dict[str, Any]) -> str:
    """Return one machine's rows as Markdown: met, missed, or measured for comparison only."""
    lines = [
        f"**{document['machine']}**, torch {document['torch']}, Python {document['python']}, "
        f"`{document['command']}`, {document['when'][:10]}:",
        "",
        "| what | value | baseline | ratio | target | |",
        "|---|---|---|---|---|---|",
    ]
    for row in document["rows"]:
        unit, target, verdict = row["unit"], "", ""
        if row["target"] is not None:
            target, verdict = f"{row['target']:.3g}", "met" if row["met"] else "**missed**"
        lines.append(
            f"| {row['name']} | {row['value']:.4g} {unit} | {row['baseline']:.4g} {unit} "
            f"| {row['ratio']:.3g} | {target} | {verdict} |"
        )
    return "\n".join(lines)


def insert(page: str, documents: list[dict[str, Any]]) -> str:
    """Return the page with these measurements between its marks."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    sections = "\n\n".join(map(section, documents))
    return f"{before}{BEGIN}\n{sections}\n{END}{after}"


def measured() -> list[dict[str, Any]]:
    """Read the results of every machine."""
    return [json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))]


def main() -> None:
    """Write the page anew."""
    PAGE.write_text(insert(PAGE.read_text(), measured()))
    sys.stdout.write(f"written to {PAGE}\n")


if __name__ == "__main__":
    main()
