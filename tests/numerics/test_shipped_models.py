"""The shipped model and its adapters: what they know, how they were made, and the rows of their training."""

import hashlib
import json
from pathlib import Path

import numpy as np
import orjson
import pytest
from model_folders import STORIES
from safetensors.numpy import load_file

from mindbatch import LLM, DecodingParams
from mindbatch.checkpoint.folders.digests import record_digests
from mindbatch.checkpoint.lora.adapter import open_adapter
from mindbatch.config.paths import data_root
from tiny_corpus import spell

FOLDER = Path(__file__).parents[2] / "examples/tiny_gpt2"
NUMBERS = [spell(number) for number in range(21)]


@pytest.fixture(scope="module")
def llm():
    return LLM(FOLDER, batch_size=32, cache_memory="64MiB")


@pytest.mark.slow
def test_it_counts_up_beyond_twenty(llm):
    text = llm.generate("An increasing sequence: one,", DecodingParams(max_new_tokens=80))[0].outputs[0].text
    assert text.startswith(" " + ", ".join(NUMBERS[2:]) + ", twenty-one, twenty-two,")


def test_it_counts_down_and_ends(llm):
    output = llm.generate("A decreasing sequence: twenty,", DecodingParams(max_new_tokens=100))[0].outputs[0]
    assert output.text == " " + ", ".join(reversed(NUMBERS[:-1])) + "."
    assert output.finish_reason == "stop"


@pytest.mark.slow
@pytest.mark.parametrize("form", ["digits", "words"])
def test_it_adds_one_digit_numbers(llm, form):
    """Greedy answers to all hundred sums; at least 95 are right."""
    if form == "digits":
        sums = {f"{a} + {b} =": f" {a + b}." for a in range(10) for b in range(10)}
    else:
        pairs = [(a, b) for a in range(10) for b in range(10)]
        sums = {f"{NUMBERS[a]} plus {NUMBERS[b]} is": f" {NUMBERS[a + b]}." for a, b in pairs}
    results = llm.generate(list(sums), DecodingParams(max_new_tokens=12))
    right = sum(result.outputs[0].text == sums[result.prompt] for result in results)
    assert right >= 95


def test_its_folder_is_small_and_says_how_it_was_trained():
    record = json.loads((FOLDER / "training.json").read_text())
    curve = [point["loss"] for point in record["loss"]]
    assert record["settings"]["seed"] == 0
    assert len(curve) > 10
    assert curve[-1] < curve[0] / 10
    assert sum(file.stat().st_size for file in FOLDER.iterdir()) < 4 << 20


def test_its_digests_are_those_of_its_weights(tmp_path):
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_bytes((FOLDER / name).read_bytes())
    record_digests(tmp_path)
    assert json.loads((tmp_path / "digests.json").read_text()) == json.loads(
        (FOLDER / "digests.json").read_text()
    )


TABLE = "transformer.wpe.weight"
NEAR, POSITIONS = 256, 2048

# Of every tensor's name and bytes in the order of names, the position table cut to its first 256 rows: what
# examples/training/train_tiny.py wrote, before examples/training/lengthen_tiny.py.
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


EXAMPLES = data_root() / "examples"
ADAPTERS = {name: EXAMPLES / "adapters" / name for name in ("decreasing", "even")}
ASKED = {
    ("decreasing", None), ("even", None), ("decreasing", "decreasing"), ("even", "even"),
    ("even", "decreasing"), ("increasing", "decreasing"), ("increasing", "even"),
}  # fmt: skip
"""Tasks of number_words, each with the adapter that is asked."""


def rows_of(task: str, adapter: str | None) -> list[dict[str, str]]:
    """All 18 questions of the adapter that is shown to users, else a third of them."""
    lines = (EXAMPLES / f"number_words/{task}.jsonl").read_bytes().splitlines()
    return [orjson.loads(line) for line in lines[:: 1 if task == adapter == "decreasing" else 3]]


@pytest.mark.parametrize(("name", "rank"), [("decreasing", 16), ("even", 4)])
def test_shipped_adapters_are_small_and_in_order(name: str, rank: int) -> None:
    adapter = open_adapter(ADAPTERS[name], base=str(EXAMPLES / "tiny_gpt2"))
    assert adapter.warnings == ()
    assert adapter.settings.rank == rank
    assert sum(path.stat().st_size for path in adapter.path.iterdir()) < 400_000
    assert Path(adapter.path / "README.md").is_file()


@pytest.mark.slow
def test_an_adapter_knows_its_own_task_and_forgets_nothing() -> None:
    """All rows are in one batch; nothing is said about the length of an answer."""
    rows = [
        (task, adapter, row) for task, adapter in sorted(ASKED, key=str) for row in rows_of(task, adapter)
    ]
    with LLM("shipped:examples/tiny_gpt2", lora_adapters=ADAPTERS, batch_size=48) as llm:
        outputs = llm.generate(
            [row["prompt"] for _, _, row in rows], adapter=[adapter for _, adapter, _ in rows]
        )
    right = dict.fromkeys(ASKED, 0)
    for (task, adapter, row), output in zip(rows, outputs, strict=True):
        right[task, adapter] += output.outputs[0].text.strip() == row["reference"]
    for asked, number in right.items():
        is_known = asked[0] in ("increasing", asked[1])
        count = len(rows_of(*asked))
        assert number >= 0.83 * count if is_known else number == 0, asked
    assert right["decreasing", "decreasing"] > 0.9 * 18


@pytest.mark.slow
@pytest.mark.skipif(
    not (STORIES / "model.safetensors").exists(), reason=f"needs the model in {STORIES}, which is not shipped"
)
@pytest.mark.parametrize("options", [{}, {"block_size": 64, "batch_size": 1}])
def test_a_trained_llama_tells_its_published_story_to_the_letter(options: dict[str, int]) -> None:
    published = (STORIES / "published_greedy_256.txt").read_text(encoding="utf-8").removesuffix("\n")
    output = LLM(STORIES, cache_memory="16MiB", **options).generate(
        [[1]], DecodingParams(max_new_tokens=256, eos_token_id=())
    )
    text = output[0].outputs[0].text
    assert text == published
