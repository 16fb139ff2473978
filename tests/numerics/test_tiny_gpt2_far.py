"""The shipped model's later positions: they are there, they changed nothing before them, and they learnt."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from mindbatch import LLM, DecodingParams

FOLDER = Path(__file__).parents[2] / "examples/tiny_gpt2"
TABLE = "transformer.wpe.weight"
NEAR, POSITIONS = 256, 2048

# Of every tensor's name and bytes in the order of names, the position table cut to its first 256 rows: what
# makers/train_tiny.py wrote, before makers/lengthen_tiny.py.
FIRST_STAGE = "147f53adf8f86bfb6a369ddb12a50380eac3393a1ba644eacb3455d9349e24ce"


@pytest.fixture(scope="module")
def weights():
    return load_file(FOLDER / "model.safetensors")


def test_the_first_stage_is_untouched(weights):
    digest = hashlib.sha256()
    for name in sorted(weights):
        digest.update(name.encode())
        digest.update((weights[name][:NEAR] if name == TABLE else weights[name]).tobytes())
    assert digest.hexdigest() == FIRST_STAGE


def test_every_file_speaks_of_the_same_positions(weights):
    config = json.loads((FOLDER / "config.json").read_text())
    tokenizer = json.loads((FOLDER / "tokenizer_config.json").read_text())
    record = json.loads((FOLDER / "training.json").read_text())
    assert len(weights[TABLE]) == POSITIONS
    assert config["n_positions"] == tokenizer["model_max_length"] == POSITIONS
    assert record["shape"]["positions"] == NEAR
    assert record["lengthening"]["positions"] == POSITIONS
    assert record["lengthening"]["parameters"] == sum(array.size for array in weights.values())


def test_its_far_rows_were_trained(weights):
    """No two are alike, as repeated rows would be, and the recorded loss is well below untrained rows'."""
    assert len(np.unique(weights[TABLE], axis=0)) == POSITIONS
    packed = json.loads((FOLDER / "training.json").read_text())["lengthening"]["packed"]
    for region in ("256 to 1023", "1024 to 2047"):
        best = min(score[region]["loss"] for name, score in packed.items() if name != "trained")
        assert packed["trained"][region]["loss"] < best / 1.5


@pytest.mark.slow
def test_a_row_runs_to_the_last_position_and_no_further():
    llm = LLM(FOLDER, batch_size=1, cache_memory="64MiB")
    prompt = [17] * (POSITIONS - 6)
    output = llm.generate([prompt], DecodingParams(max_new_tokens=20, eos_token_id=()))[0].outputs[0]
    assert len(output.token_ids) == 6
    assert output.finish_reason == "length"
