"""A Ray Data pipeline with `mindbatch.ray.Generate`, in a driver process; prints its results as JSON.

Its argument is JSON: the rows, the arguments of Generate, the batch format.
"""

import json
import os
import sys
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import ray
import ray.data

from mindbatch.ray import Generate, generate


def children_of(process: int) -> list[int]:
    """Its child processes."""
    return [
        int(child)
        for task in Path(f"/proc/{process}/task").iterdir()
        for child in (task / "children").read_text().split()
    ]


class Located(Generate):
    """Says beside each result in which format its batch came, and which node and processes computed it.

    Each actor is made on a day of its own.
    """

    def __init__(self, *arguments: Any, **named: Any) -> None:
        generate.today = lambda: date.fromordinal(700_000 + os.getpid()).isoformat()
        super().__init__(*arguments, **named)

    def __call__(self, batch: Any) -> pa.Table:
        table = super().__call__(batch)
        children = children_of(os.getpid())
        where = {
            "format": type(batch).__name__,
            "node": ray.get_runtime_context().get_node_id(),
            "processes": [os.getpid(), *children],
            "date": self._date,
            "threads": os.environ.get("OMP_NUM_THREADS"),
        }
        return table.append_column("where", pa.array([json.dumps(where)] * len(table)))


def main(rows: list[dict[str, Any]], arguments: dict[str, Any], batch_format: str) -> None:
    """Runs the pipeline on the cluster of RAY_ADDRESS, with an actor on each of two nodes."""
    ray.init(logging_level="ERROR", log_to_driver=False)
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.wait_for_min_actors_s = 120  # one alone would be done before the other has its model
    dataset = ray.data.from_items(rows, override_num_blocks=3).map_batches(
        Located,
        fn_constructor_kwargs=arguments,
        batch_format=batch_format,
        batch_size=2,
        compute=ray.data.ActorPoolStrategy(size=2),
        num_cpus=2,
        resources={"place": 1},
    )
    print(json.dumps(dataset.take_all()))


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
