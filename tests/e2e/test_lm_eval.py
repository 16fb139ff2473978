"""lm-evaluation-harness with MindBatch's model, beside its own `hf` model where torch is installed."""

import json
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("lm_eval", reason="lm-evaluation-harness is not installed: pip install -e '.[lm-eval]'")

from command_line import CommandLine
from mindbatch.lm_eval.model import MindBatchLM
from mindbatch.tasks.evaluate.harness import HarnessTasks, evaluated, read_tasks
from mindbatch.tasks.evaluate.task_schema import HarnessConfig

pytestmark = pytest.mark.slow

TINY = Path(__file__).parents[2] / "examples/tiny_gpt2"
LONGEST = 60
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


@pytest.fixture(scope="module")
def tasks(rows: Path) -> HarnessTasks:
    return read_tasks(["mb_choices", "mb_answers", "mb_texts"], rows)


@pytest.fixture(scope="module")
def ours(tasks: HarnessTasks) -> Iterator[dict[str, Any]]:
    model = MindBatchLM(str(TINY), max_length=LONGEST, dtype="float32")
    yield evaluated(model, tasks, HarnessConfig())
    model._llm.close()


def test_the_model_answers_every_kind_of_request(ours: dict[str, Any]) -> None:
    assert ours["results"]["mb_answers"]["exact_match,none"] == 1.0
    assert ours["results"]["mb_choices"]["acc,none"] >= 0.75
    assert ours["results"]["mb_texts"]["bits_per_byte,none"] > 0


@pytest.mark.skipif(not (find_spec("torch") and find_spec("accelerate")), reason="torch is not installed")
def test_the_scores_are_those_of_the_harnesss_own_model(ours: dict[str, Any], tasks: HarnessTasks) -> None:
    from lm_eval.models.huggingface import HFLM

    model = HFLM(pretrained=str(TINY), device="cpu", dtype="float32", batch_size=4, max_length=LONGEST)
    theirs = evaluated(model, tasks, HarnessConfig())
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


def test_a_command_prints_its_table_alone(tmp_path: Path, rows: Path) -> None:
    """Neither bars nor warnings of the harness, nor what git says of the folder."""
    command = CommandLine(tmp_path)
    page = tmp_path / "page.html"
    done = command.run(
        "evaluate",
        "model=tiny_gpt2",
        "harness.tasks=[mb_choices,mb_answers,mb_texts]",
        f"harness.include_path={rows}",
        f"report={page}",
        environment={"HF_DATASETS_OFFLINE": "1"},
    )
    assert (done.returncode, done.stderr.splitlines()) == (
        0,
        [f"mindbatch: written {tmp_path}/page/results.json", f"mindbatch: written {page}"],
    )
    assert [line.split()[0] for line in done.stdout.splitlines()[2:]] == [
        *("mb_answers", "mb_choices", "mb_choices", "mb_texts", "mb_texts")
    ]
    assert "mb_choices: acc_norm" in page.read_text(encoding="utf-8")


def numbers(value: Any) -> list[float]:
    """The numbers in nested lists, in order; whether something is greedy is 0 or 1."""
    if isinstance(value, list):
        return [number for each in value for number in numbers(each)]
    return [float(value)] if isinstance(value, int | float) else []
