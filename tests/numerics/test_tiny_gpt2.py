"""The shipped model counts and adds, and its folder records how it was made."""

import json
from pathlib import Path

import pytest

from mindbatch import LLM, DecodingParams
from mindbatch.checkpoint.folders.digests import record_digests

FOLDER = Path(__file__).parents[2] / "examples/tiny_gpt2"
NUMBERS = [
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
    "nineteen",
    "twenty",
]


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
