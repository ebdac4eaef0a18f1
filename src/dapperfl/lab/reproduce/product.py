"""What a name comes to: a document and figures, and their files."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from dapperfl.lab.compare.output import Document, write_document

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Product:
    """Tables with their remarks, and figures by what is added to the name of their files."""

    document: Document
    figures: "Mapping[str, Figure]" = field(default_factory=dict)


def write_product(product: Product, stem: Path, *more: str) -> list[Path]:
    """Write the page, the LaTeX tables, and each figure for pages (PNG) and for papers (PDF)."""
    pictures = {name: stem.with_name(f"{stem.name}{name}.png") for name in product.figures}
    shown = [f"![{product.document.title}]({path.name})\n" for path in pictures.values()]
    written = write_document(product.document, stem, *shown, *more)
    for name, figure in product.figures.items():
        pdf = pictures[name].with_suffix(".pdf")
        figure.savefig(pictures[name])
        figure.savefig(pdf, metadata={"CreationDate": None})  # the same rows, the same file
        written += [pictures[name], pdf]
    return written
