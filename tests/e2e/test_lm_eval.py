"""lm-evaluation-harness with MindBatch's model, beside its own `hf` model where torch is installed."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("lm_eval", reason="lm-evaluation-harness is not installed: pip install -e '.[lm-eval]'")

from lm_eval import simple_evaluate
from lm_eval.api.model import LM
from lm_eval.tasks import TaskManager

from mindbatch.lm_eval.model import MindBatchLM

pytestmark = pytest.mark.slow

TINY = Path(__file__).parents[2] / "examples/tiny_gpt2"
LONGEST = 60
TASKS = ["mb_choices", "mb_answers", "mb_texts"]
SUMS = [(3, 4), (2, 5), (6, 3), (1, 8)]
NUMBERS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
CHOICES = """
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_choice: choices
doc_to_target: answer
metric_list: [{metric: acc}, {metric: acc_norm}]
"""
ANSWERS = """
output_type: generate_until
doc_to_text: "{{question}}"
doc_to_target: " {{choices[answer]}}"
generation_kwargs: {until: ["."], max_gen_toks: 6, do_sample: false}
metric_list: [{metric: exact_match}]
"""
TEXTS = """
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{text}}"
metric_list: [{metric: word_perplexity}, {metric: bits_per_byte}]
"""


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of three tasks over a file: choices, outputs, and texts of more tokens than a window has."""
    folder = tmp_path_factory.mktemp("tasks")
    rows = [
        {
            "question": f"{NUMBERS[a]} plus {NUMBERS[b]} is",
            "choices": [NUMBERS[a + b], NUMBERS[a + b - 1], NUMBERS[a], "ninety"],
            "answer": 0,
            "text": " ".join(
                f"{NUMBERS[a]} plus {NUMBERS[n % 9]} is {NUMBERS[n % 7]}." for n in range(3 * a)
            ),
        }
        for a, b in SUMS
    ]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name, lines in (("choices", CHOICES), ("answers", ANSWERS), ("texts", TEXTS)):
        where = f"dataset_path: json\ndataset_kwargs: {{data_files: {{test: {folder / 'rows.jsonl'}}}}}"
        (folder / f"{name}.yaml").write_text(f"task: mb_{name}\n{where}\ntest_split: test{lines}")
    return folder


def evaluated(model: LM, rows: Path) -> dict[str, Any]:
    manager = TaskManager(include_path=rows, include_defaults=False)
    results: dict[str, Any] = simple_evaluate(model, tasks=TASKS, task_manager=manager, bootstrap_iters=1000)
    return results


@pytest.fixture(scope="module")
def ours(rows: Path) -> Iterator[dict[str, Any]]:
    model = MindBatchLM(str(TINY), max_length=LONGEST, dtype="float32")
    yield evaluated(model, rows)
    model._llm.close()


def test_the_model_answers_every_kind_of_request(ours: dict[str, Any]) -> None:
    assert ours["results"]["mb_answers"]["exact_match,none"] == 1.0
    assert ours["results"]["mb_choices"]["acc,none"] >= 0.75
    assert ours["results"]["mb_texts"]["bits_per_byte,none"] > 0


@pytest.mark.skipif(not (find_spec("torch") and find_spec("accelerate")), reason="torch is not installed")
def test_the_scores_are_those_of_the_harnesss_own_model(ours: dict[str, Any], rows: Path) -> None:
    from lm_eval.models.huggingface import HFLM

    model = HFLM(pretrained=str(TINY), device="cpu", dtype="float32", batch_size=4, max_length=LONGEST)
    theirs = evaluated(model, rows)
    for task, scores in theirs["results"].items():
        for name, value in scores.items():
            assert ours["results"][task][name] == (
                pytest.approx(value, rel=1e-5) if isinstance(value, float) else value
            ), f"{task}: {name}"
    for task, samples in theirs["samples"].items():
        for mine, other in zip(ours["samples"][task], samples, strict=True):
            assert numbers(mine["resps"]) == pytest.approx(numbers(other["resps"]), abs=1e-3)
            assert mine["prompt_hash"] == other["prompt_hash"]
            if task == "mb_answers":
                assert mine["resps"] == other["resps"]


def test_the_documented_command(tmp_path: Path, rows: Path) -> None:
    """The harness's own command line with our model class (docs/evaluate.md), on tasks of the user's own."""
    model = f"pretrained={TINY},max_length={LONGEST},dtype=float32"
    arguments = ["--model", "mindbatch", "--model_args", model]
    arguments += ["--tasks", ",".join(TASKS), "--include_path", str(rows)]
    arguments += ["--output_path", str(tmp_path / "scores"), "--log_samples"]
    done = subprocess.run(
        [sys.executable, "-I", "-m", "mindbatch.lm_eval", *arguments],
        cwd=tmp_path,
        env={**os.environ, "HF_DATASETS_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    [results] = (tmp_path / "scores").rglob("results_*.json")
    scores = json.loads(results.read_text())["results"]
    assert scores["mb_answers"]["exact_match,none"] == 1.0
    assert [name for name in TASKS if f"|{name}" in done.stdout.replace(" ", "")] == TASKS
    assert len([*(tmp_path / "scores").rglob("samples_mb_*.jsonl")]) == len(TASKS)


def numbers(value: Any) -> list[float]:
    """The numbers in nested lists, in order; whether something is greedy is 0 or 1."""
    if isinstance(value, list):
        return [number for each in value for number in numbers(each)]
    return [float(value)] if isinstance(value, int | float) else []
