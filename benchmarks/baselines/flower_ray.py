"""Baseline (c): the bare loop's work in Flower's simulation on Ray, with its own FedAvg.

python -m benchmarks.baselines.flower_ray DEVICES WIDTH ROUNDS    # needs flwr[simulation]
"""

import json
import logging
import os
import sys
import time
from itertools import pairwise

# Read when flwr and ray are imported.
os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from benchmarks.baselines import bare_loop, same_work
from benchmarks.synthetic import examples


def client_app(devices: int, width: int) -> ClientApp:
    """Train as the bare loop does; only how it gets there and back is Flower's."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        own = same_work.clients(devices)[int(context.node_config["partition-id"])]
        weights = message.content["arrays"].to_torch_state_dict()
        trained = bare_loop.train(same_work.net(width), weights, own)
        metrics = MetricRecord({"num-examples": len(own)})
        content = RecordDict({"arrays": ArrayRecord(trained), "metrics": metrics})
        return Message(content, reply_to=message)

    return app


def server_app(width: int, rounds: int, ends: list[float]) -> ServerApp:
    """Average and evaluate; note when each round ends."""
    app = ServerApp()
    test = examples(bare_loop.BATCH, 32)

    def evaluate(_: int, arrays: ArrayRecord) -> MetricRecord:
        share = bare_loop.accuracy(same_work.net(width), arrays.to_torch_state_dict(), test)
        ends.append(time.perf_counter())
        return MetricRecord({"accuracy": share})

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        start = ArrayRecord(same_work.net(width).state_dict())
        strategy = FedAvg(fraction_evaluate=0.0)
        strategy.start(grid, start, num_rounds=rounds, evaluate_fn=evaluate)

    return app


def rounds(devices: int, width: int, repeats: int) -> list[float]:
    """Run the simulation; return the seconds of every round but the first."""
    ends: list[float] = []
    run_simulation(
        server_app(width, repeats + 1, ends),
        client_app(devices, width),
        num_supernodes=devices,
        backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
    )
    return [after - before for before, after in pairwise(ends)][1:]


if __name__ == "__main__":
    logging.getLogger("flwr").setLevel(logging.ERROR)
    work = tuple(map(int, sys.argv[1:4]))
    print(json.dumps(same_work.beside_bare(lambda: rounds(*work), *work)))  # noqa: T201
