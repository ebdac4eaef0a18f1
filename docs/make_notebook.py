"""Run docs/notebook.ipynb and keep what it shows: `python docs/make_notebook.py`.

No Jupyter is needed: cells print, and draw with matplotlib.
"""

import base64
import io
import json
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

NOTEBOOK = Path(__file__).parent / "notebook.ipynb"


def shown(source: str, names: dict[str, Any], cell: str) -> list[dict[str, Any]]:
    """Run a cell among the names of those before it; return its text and its figures."""
    import matplotlib.pyplot as plt

    said = io.StringIO()
    with redirect_stdout(said):
        exec(compile(source, cell, "exec"), names)
    outputs = [figure_of(plt.figure(number)) for number in plt.get_fignums()]
    plt.close("all")
    if text := said.getvalue():
        lines = text.splitlines(keepends=True)
        outputs.insert(0, {"name": "stdout", "output_type": "stream", "text": lines})
    return outputs


def figure_of(figure: Any) -> dict[str, Any]:
    """Return a figure as a notebook keeps it."""
    file = io.BytesIO()
    figure.savefig(file, format="png", bbox_inches="tight")
    picture = base64.b64encode(file.getvalue()).decode()
    width, height = (int(size * figure.dpi) for size in figure.get_size_inches())
    about = f"<Figure size {width}x{height} with {len(figure.axes)} Axes>"
    data = {"image/png": picture, "text/plain": [about]}
    return {"data": data, "metadata": {}, "output_type": "display_data"}


def main() -> None:
    """Run all cells, then write the notebook."""
    import matplotlib.pyplot as plt

    plt.switch_backend("agg")
    plt.show = lambda *_args, **_settings: None  # figures are collected when their cell ends
    notebook = json.loads(NOTEBOOK.read_text())
    names: dict[str, Any] = {"__name__": "notebook"}
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for number, cell in enumerate(cells, start=1):
        cell["outputs"] = shown("".join(cell["source"]), names, f"<cell {number}>")
        cell["execution_count"] = number
    NOTEBOOK.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
