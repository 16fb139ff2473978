"""A reshard needs as much memory as it has threads, however large the model is; a merge no whole weight."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mindbatch.checkpoint.folders.digest_writer import record_digests
from reshard_adapters import write_adapter_for
from reshard_models import LLAMA, source_shapes_of, write_tensors

BENCHMARKS = Path(__file__).parents[4] / "benchmarks"
MERGE = """
import sys
from bench_tree_memory import PeakMemory
from mindbatch.tasks.reshard.schema import ReshardConfig
from mindbatch.tasks.reshard.task import run
source, target, ways, workers, adapter = sys.argv[1:]
config = ReshardConfig(source=source, workers=int(workers))
config.target.dir, config.target.model_parallel, config.lora.merge = target, int(ways), adapter
with PeakMemory() as memory:
    run(config)
print(memory.peak)
"""
DEEP = {**LLAMA, "hidden_size": 1024, "intermediate_size": 2816, "vocab_size": 16001, "num_hidden_layers": 3}
WIDE = {**DEEP, "vocab_size": 32001, "num_hidden_layers": 1}
"""Its head alone is 65 MB, would be 131 MB in float32, and so would be its product."""
MB = 10**6


def peak_of(source: Path, target: Path, workers: int, *adapter: Path) -> int:
    """Bytes that all processes together have at most.

    A shell is between: the system counts the memory of the process that starts another to that one's peak.
    """
    shell = ["sh", "-c", '"$@"; exit $?', "sh"]
    script = ["-c", MERGE] if adapter else ["bench_reshard_run.py"]
    command = [*shell, sys.executable, *script, source, target, 4, workers, *adapter]
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=True, cwd=BENCHMARKS)
    return int(done.stdout.split()[-1])


def write_large(source: Path, config: dict[str, Any]) -> int:
    """A model of noise; the bytes of its largest tensor."""
    source.mkdir()
    (source / "config.json").write_text(json.dumps(config))
    noise = np.random.default_rng(0).integers(0, 1 << 14, 1 << 24, dtype=np.uint16)
    shapes = source_shapes_of(config)
    arrays = {name: np.resize(noise[place:], shapes[name]) for place, name in enumerate(shapes)}
    assert sum(array.nbytes for array in arrays.values()) > 130 * MB
    write_tensors(source / "model.safetensors", arrays, "BF16")
    record_digests(source)
    return max(array.nbytes for array in arrays.values())


@pytest.mark.slow
def test_130_megabytes(tmp_path: Path) -> None:
    largest = write_large(tmp_path / "source", DEEP)
    assert peak_of(tmp_path / "source", tmp_path / "two", 2) < 300 * MB + 1.2 * largest * 2
    assert peak_of(tmp_path / "two", tmp_path / "again", 1) < 120 * MB


@pytest.mark.slow
def test_a_merge_into_a_weight_of_65_megabytes(tmp_path: Path) -> None:
    assert write_large(tmp_path / "source", WIDE) > 65 * MB
    adapter = write_adapter_for(tmp_path / "adapter", WIDE)
    assert peak_of(tmp_path / "source", tmp_path / "one", 1, adapter) < 130 * MB


@pytest.mark.on_demand
def test_a_merge_in_two_threads_and_of_a_source_of_ranks(tmp_path: Path) -> None:
    write_large(tmp_path / "source", WIDE)
    adapter, other = (write_adapter_for(tmp_path / f"adapter{seed}", WIDE, seed=seed) for seed in (7, 8))
    assert peak_of(tmp_path / "source", tmp_path / "two", 2, adapter) < 280 * MB
    assert peak_of(tmp_path / "two", tmp_path / "again", 1, other) < 130 * MB
