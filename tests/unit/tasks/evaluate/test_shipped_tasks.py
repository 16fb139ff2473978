"""The tasks of configs/task over rows in the layouts that they are for."""

from pathlib import Path
from typing import Any

import orjson
import pytest

from mindbatch.config.compose import compose_task
from mindbatch.tasks.evaluate.questions import Question, read_questions
from mindbatch.tasks.evaluate.schema import EvaluateConfig
from mindbatch.tasks.registry import TASKS

LETTERED = {"A": "Rome", "B": "Oslo", "C": "Lima", "D": "Bern"}
ROWS: dict[str, tuple[dict[str, Any], str, dict[str, Any]]] = {
    "gsm8k": (
        {"question": "2 and 2?", "answer": "2 + 2 = 4\n#### 4"},
        "#### 101\n\nQuestion: 2 and 2?\nAnswer:",
        {"references": ("2 + 2 = 4\n#### 4",)},
    ),
    "mmlu": (
        {"question": "Which?", "subject": "x", "choices": [*LETTERED.values()], "answer": 2},
        "Which?\nA. Rome\nB. Oslo\nC. Lima\nD. Bern\nAnswer:",
        {"choices": (" A", " B", " C", " D"), "correct": 2},
    ),
    "ceval": (
        {"id": 0, "question": "哪个?", **LETTERED, "answer": "B"},
        "哪个?\nA. Rome\nB. Oslo\nC. Lima\nD. Bern\n答案：",
        {"choices": ("A", "B", "C", "D"), "correct": 1},
    ),
    "cmmlu": (
        {"Question": "哪个?", **LETTERED, "Answer": "D"},
        "哪个?\nA. Rome\nB. Oslo\nC. Lima\nD. Bern\n答案：",
        {"choices": ("A", "B", "C", "D"), "correct": 3},
    ),
    "adgen": (
        {"content": "类型#上衣", "summary": "这件上衣很好"},
        "类型#上衣",
        {"references": ("这件上衣很好",)},
    ),
    "squad": (
        {
            "context": "Bern is old.",
            "question": "What?",
            "answers": {"text": ["Bern", "it"], "answer_start": [0, 1]},
        },
        "Bern is old.\n\nQuestion: What?\nAnswer:",
        {"references": ("Bern", "it")},
    ),
    "ifeval": (
        {"prompt": "Shout.", "instruction_id_list": ["change_case:english_capital"], "kwargs": [{}]},
        "Shout.",
        {"references": ('["change_case:english_capital",{}]',)},
    ),
    "text": ({"text": "Once upon a time."}, "Once upon a time.", {"text": "Once upon a time."}),
}


def composed(task: str, row: dict[str, Any], model: Path, tmp_path: Path) -> EvaluateConfig:
    data = tmp_path / "rows.jsonl"
    data.write_bytes(orjson.dumps(row) + b"\n")
    given = [f"task={task}", f"model.checkpoint_name_or_path={model}", f"data.path={data}"]
    config = compose_task(TASKS["evaluate"], [*given, f"output.dir={tmp_path}/evaluation"]).finish()
    assert isinstance(config, EvaluateConfig)
    return config


@pytest.mark.fast_cases(3)
@pytest.mark.parametrize("task", ROWS)
def test_a_row_of_its_layout_is_a_question(task: str, model_folder: Path, tmp_path: Path) -> None:
    row, prompt, parts = ROWS[task]
    [question] = read_questions(composed(task, row, model_folder, tmp_path))
    assert question.content["text"].endswith(prompt)
    unset = Question("", "", {})
    wanted = {
        name: parts.get(name, getattr(unset, name)) for name in ("references", "choices", "correct", "text")
    }
    assert {name: getattr(question, name) for name in wanted} == wanted


def test_every_shipped_task_has_a_layout_here() -> None:
    shipped = {path.stem for path in (Path(__file__).parents[4] / "configs/task").glob("*.yaml")}
    assert shipped == {*ROWS, "auto"}


def test_a_task_ends_answers_where_decoding_does_not(model_folder: Path, tmp_path: Path) -> None:
    config = composed("squad", ROWS["squad"][0], model_folder, tmp_path)
    assert config.answer_decoding("greedy").max_new_tokens == 32
    config.variants["greedy"].max_new_tokens = 5
    assert config.answer_decoding("greedy").max_new_tokens == 5
    assert config.answer_decoding("greedy").stop == ["\n"]
