"""Where the time of a round goes on a GPU: what each stream does when, as a picture.

    python -m benchmarks.timeline record --config experiments/digits.toml --data DIR --out FILE.json
    python -m benchmarks.timeline draw FILE.json PICTURE.png

`record` needs a GPU and runs a round under torch's profiler, which makes it longer than it is; the
round's true length, measured just before, is written beside it. The file has one row a stream: the
share of each millisecond in which the stream had a kernel running.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that it runs as a script, too

WARM, TIMED = 3, 5  # rounds before, and those of which the median is taken


@dataclass(frozen=True)
class Kernel:
    """One kernel on one stream, in milliseconds."""

    stream: int
    begin: float
    end: float


def kernels_of(events: Iterable[dict[str, Any]]) -> list[Kernel]:
    """Pick the kernels out of a profiler's events, counted from the first of them."""
    kinds = ("kernel", "gpu_memcpy", "gpu_memset")
    found = [event for event in events if event.get("cat") in kinds]
    first = min((event["ts"] for event in found), default=0)
    return [
        Kernel(
            int(event["args"].get("stream", 0)),
            (event["ts"] - first) / 1e3,
            (event["ts"] + event["dur"] - first) / 1e3,
        )
        for event in found
    ]


def shares(spans: Iterable[tuple[float, float]], length: int) -> list[float]:
    """Return the share of each millisecond that is covered by spans, which may overlap."""
    busy = [0.0] * length
    end = 0.0
    for begin, until in sorted(spans):
        at = max(begin, end)
        end = max(end, until)
        while at < until:
            step = min(until, int(at) + 1.0)
            busy[int(at)] += step - at
            at = step
    return [round(share, 3) for share in busy]


def binned(kernels: Sequence[Kernel]) -> dict[str, list[float]]:
    """Return every stream's busy share by millisecond, in the order they begin; `any` is all."""
    length = int(max(kernel.end for kernel in kernels)) + 1
    streams = dict.fromkeys(k.stream for k in sorted(kernels, key=lambda each: each.begin))
    rows = {"any": shares(((k.begin, k.end) for k in kernels), length)}
    for number, stream in enumerate(streams):
        own = [(k.begin, k.end) for k in kernels if k.stream == stream]
        rows[f"stream {number}"] = shares(own, length)
    return rows


def record(config: Path, settings: Sequence[str], out: Path) -> None:
    """Profile one round after some that warm up."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    from benchmarks.results import facts
    from dapperfl.lab.build import build
    from dapperfl.lab.resolve import resolve

    run = build(resolve(config, [*settings, f"rounds={WARM + TIMED + 1}"]))
    rounds, seconds = run.rounds(), []
    for _ in range(WARM + TIMED):
        began = time.perf_counter()
        next(rounds)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    with profile(activities=[ProfilerActivity.CUDA]) as watched:
        next(rounds)
        torch.cuda.synchronize()
    trace = out.with_suffix(".trace")
    watched.export_chrome_trace(str(trace))
    rows = binned(kernels_of(json.loads(trace.read_text())["traceEvents"]))
    trace.unlink()
    about = {"config": config.name, "settings": [each for each in settings if "root" not in each]}
    true = {"round_seconds": statistics.median(seconds[WARM:])}
    out.write_text(
        json.dumps(facts("python -m benchmarks.timeline record") | about | true | {"busy": rows})
    )


def draw(source: Path, picture: Path) -> None:
    """Draw a recorded round: one line a stream, dark where it is busy."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    known = json.loads(source.read_text())
    rows: dict[str, list[float]] = known["busy"]
    figure, axes = plt.subplots(figsize=(10, 0.32 * len(rows) + 1.6), layout="constrained")
    length = len(rows["any"])
    image = axes.imshow(
        list(rows.values()), aspect="auto", cmap="Blues", vmin=0, vmax=1,
        extent=(0, length, len(rows), 0), interpolation="nearest",
    )  # fmt: skip
    axes.set_yticks([number + 0.5 for number in range(len(rows))], list(rows))
    axes.set_xlabel("milliseconds, under the profiler")
    share = 100 * statistics.fmean(rows["any"])
    axes.set_title(
        f"{known['config']}: a round of {1e3 * known['round_seconds']:.0f} ms "
        f"({length} ms while watched); the GPU is busy {share:.0f} % of it",
        loc="left", fontsize=10,
    )  # fmt: skip
    figure.colorbar(image, label="share of a millisecond", pad=0.01)
    figure.savefig(picture, dpi=110)
    plt.close(figure)


def main() -> None:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parts = parser.add_subparsers(dest="part", required=True)
    recording = parts.add_parser("record")
    recording.add_argument("--config", type=Path, required=True)
    recording.add_argument("--data", type=Path, help="folder of the real images")
    recording.add_argument("--set", action="append", default=[], dest="settings")
    recording.add_argument("--out", type=Path, required=True)
    drawing = parts.add_parser("draw")
    drawing.add_argument("source", type=Path)
    drawing.add_argument("picture", type=Path)
    given = parser.parse_args()
    if given.part == "draw":
        draw(given.source, given.picture)
        return
    root = [f"data.root={given.data}"] if given.data else []
    engine = ["engine=graphs", "engine.precision=bf16"]
    record(given.config, [*engine, *root, *given.settings], given.out)


if __name__ == "__main__":
    main()
