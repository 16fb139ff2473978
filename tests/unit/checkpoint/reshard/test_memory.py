"""A reshard needs as much memory as it has processes, however large the model is."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from mindbatch.checkpoint.folders.digests import record_digests
from reshard_models import LLAMA, source_shapes_of, write_tensors

RUN = Path(__file__).parents[4] / "benchmarks/bench_reshard_run.py"
LARGE = {**LLAMA, "hidden_size": 1024, "intermediate_size": 2816, "vocab_size": 16001, "num_hidden_layers": 3}
MB = 10**6


def peak_of(source: Path, target: Path, workers: int) -> int:
    """Bytes that all processes together have at most."""
    command = [sys.executable, RUN, source, target, "4", str(workers)]
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=True)
    return int(done.stdout.split()[-1])


@pytest.mark.slow
def test_130_megabytes(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "config.json").write_text(json.dumps(LARGE))
    noise = np.random.default_rng(0).integers(0, 1 << 14, 1 << 24, dtype=np.uint16)
    shapes = source_shapes_of(LARGE)
    arrays = {name: np.resize(noise[place:], shapes[name]) for place, name in enumerate(shapes)}
    largest = max(array.nbytes for array in arrays.values())
    assert sum(array.nbytes for array in arrays.values()) > 130 * MB
    write_tensors(source / "model.safetensors", arrays, "BF16")
    record_digests(source)
    assert peak_of(source, tmp_path / "two", 2) < 300 * MB + 1.2 * largest * 2
    assert peak_of(tmp_path / "two", tmp_path / "again", 1) < 120 * MB
