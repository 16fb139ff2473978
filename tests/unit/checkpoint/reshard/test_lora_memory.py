"""A merging reshard holds bands and 512 rows of a product, never a whole weight."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from mindbatch.checkpoint.folders.digests import record_digests
from reshard_adapters import write_adapter_for
from reshard_models import LLAMA, source_shapes_of, write_tensors

BENCHMARKS = Path(__file__).parents[4] / "benchmarks"
MERGE = """
import sys
from bench_tree_memory import PeakMemory
from mindbatch.tasks.reshard.schema import ReshardConfig
from mindbatch.tasks.reshard.task import run
source, target, adapter, workers = sys.argv[1:]
config = ReshardConfig(source=source, workers=int(workers))
config.target.dir, config.target.model_parallel, config.lora.merge = target, 4, adapter
with PeakMemory() as memory:
    run(config)
print(memory.peak)
"""
WIDE = {**LLAMA, "hidden_size": 1024, "intermediate_size": 2816, "vocab_size": 32001, "num_hidden_layers": 1}
MB = 10**6


def peak_of(source: Path, target: Path, adapter: Path, workers: int) -> int:
    """Bytes that all processes together have at most.

    A shell is between: the system counts the memory of the process that starts another to that one's peak.
    """
    shell = ["sh", "-c", '"$@"; exit $?', "sh"]
    command = [*shell, sys.executable, "-c", MERGE, source, target, adapter, workers]
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=True, cwd=BENCHMARKS)
    return int(done.stdout.split()[-1])


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A model whose head alone would be 131 MB in float32, and so would be its product."""
    source = tmp_path / "source"
    source.mkdir()
    (source / "config.json").write_text(json.dumps(WIDE))
    noise = np.random.default_rng(0).integers(0, 1 << 14, 1 << 24, dtype=np.uint16)
    arrays = {name: np.resize(noise[place:], shape) for place, (name, shape) in enumerate(shapes())}
    assert max(array.nbytes for array in arrays.values()) > 65 * MB
    write_tensors(source / "model.safetensors", arrays, "BF16")
    record_digests(source)
    return source


@pytest.mark.slow
def test_a_weight_of_65_megabytes(tmp_path: Path, source: Path) -> None:
    adapter = write_adapter_for(tmp_path / "adapter", WIDE)
    assert peak_of(source, tmp_path / "one", adapter, 1) < 130 * MB


@pytest.mark.on_demand
def test_two_processes_and_a_source_of_ranks(tmp_path: Path, source: Path) -> None:
    adapter = write_adapter_for(tmp_path / "adapter", WIDE)
    assert peak_of(source, tmp_path / "two", adapter, 2) < 280 * MB
    assert peak_of(tmp_path / "two", tmp_path / "again", write_other(tmp_path), 1) < 130 * MB


def shapes() -> list[tuple[str, tuple[int, ...]]]:
    """Of all tensors of the model."""
    return [*source_shapes_of(WIDE).items()]


def write_other(folder: Path) -> Path:
    """Another adapter: none is merged twice."""
    return write_adapter_for(folder / "other", WIDE, seed=8)
