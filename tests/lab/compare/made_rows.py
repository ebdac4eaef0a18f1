"""Rows written by hand, as a CSV file would give them."""

from dapperfl.lab.compare.rows import Row


def made_row(label: str, seed: int, *, dark: float, light: float, **more: str) -> Row:
    """Return the row of a run whose three marks are all alike."""
    method, _, rest = label.partition(":")
    mean = (dark + light) / 2
    row = {"method": method, "preset": rest.split(" ")[0] or "default", "seed": str(seed)}
    for prefix, value in (("", mean), ("dark_", dark), ("light_", light)):
        row |= {f"{prefix}{mark}": f"{value:.4f}" for mark in ("best", "last", "last5")}
    row |= {name: "1000" for name in ("parameters", "flops", "bytes", "bytes_up", "bytes_down")}
    row |= {"peak_parameters": "1000", "weakest_parameters": "200", "weakest_macs": "900"}
    row |= {"seconds": "61.0", "base": "digits", "label": label, "settings": ""}
    row |= {"benchmark": "digits", "protocol": "paper", "rounds": "2", "id": f"id-{label}"}
    return row | more
