"""Results of a run are read where they are asked for: what is kept of a row does not grow with its text."""

import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson
import pytest

from mindbatch.evaluation import metric_of
from mindbatch.evaluation.metric import Answer
from mindbatch.evaluation.scores import scores_of
from mindbatch.tasks.evaluate.questions import Question
from mindbatch.tasks.evaluate.stored_outputs import ReadAnswers, StoredOutputs

ROWS, MOST_BYTES = 1000, 400
"""MOST_BYTES: of memory for each row, whose texts have ten times as many."""


def generation(text: str) -> dict[str, Any]:
    facts = {"finish_reason": "stop", "score": None, "rank": None}
    return {"text": text, "token_ids": [1, 2], "cumulative_logprob": -1.5, **facts}


def write(path: Path, rows: Sequence[Sequence[str]]) -> Path:
    lines = [
        {"key": str(key), "generated_tokens": 3, "generations": [*map(generation, texts)]}
        for key, texts in enumerate(rows)
    ]
    path.write_bytes(b"".join(orjson.dumps(line) + b"\n" for line in lines))
    return path


def questions(references: Sequence[str]) -> list[Question]:
    return [Question("", "", {"text": ""}, references=(text,)) for text in references]


def test_outputs_are_those_of_the_file_in_any_order(tmp_path: Path) -> None:
    outputs = StoredOutputs(write(tmp_path / "r.jsonl", [["一\n", "b"], [" c "], []]))
    assert (len(outputs), [*outputs], outputs.num_tokens, outputs.num_samples) == (3, [0, 1, 2], 9, 2)
    assert [output.text for output in outputs[1]] == [" c "]
    assert [output.text for output in outputs[0]] == ["一\n", "b"]
    assert (outputs[0][0].num_tokens, outputs[0][0].logprob) == (2, -1.5)
    assert outputs[0][0].facts["finish_reason"] == "stop"
    with pytest.raises(KeyError):
        outputs[3]
    read = ReadAnswers(outputs, questions(["一", "c", "x", "y"]), str.strip, str.strip)
    assert [[answer.text for answer in read[number]] for number in read] == [
        ["一", "b"],
        ["c"],
        [None, None],
        [None, None],
    ]
    assert read[2] == (Answer(None, ("x",)),) * 2
    assert read.get(4) is None


def test_without_results_there_are_none(tmp_path: Path) -> None:
    assert not StoredOutputs(tmp_path / "none.jsonl")


def test_memory_does_not_grow_with_the_texts(tmp_path: Path) -> None:
    """Not while they are read, nor while a metric looks at them."""
    texts = [[f"{number} " + "word " * 800] for number in range(ROWS)]
    path, asked = write(tmp_path / "r.jsonl", texts), questions([text.strip() for [text] in texts])
    metric = metric_of("exact_match")
    scores_of(metric, {"a": {0: (Answer("a", ("a",)),)}}, [None], {"a": "a"})  # what is imported at first
    tracemalloc.start()
    outputs = StoredOutputs(path)
    read = ReadAnswers(outputs, asked, str.strip, str.strip)
    rows = metric.sums_of(read[number] for number in read)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert rows[:, 0].sum() == ROWS
    assert peak < ROWS * MOST_BYTES
