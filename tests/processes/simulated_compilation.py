"""Compiles several models in one process of the simulation, which imports MindSpore once."""

import json
from collections.abc import Iterator
from typing import Any

from mindbatch.engine.compilation import compile_ranks
from mindbatch.kernels import memory


def compile_jobs(jobs: str) -> Iterator[dict[str, Any]]:
    """jobs: by name, those of `compile_ranks`; the last one is compiled in float32, against our own rule."""
    named = json.loads(jobs)
    for name, job in named.items():
        if name == "float32":
            memory.DTYPES["Ascend"] = (memory.FLOAT32,)
        for report in compile_ranks(json.dumps(job)):
            yield {"job": name, **report}
