"""Rows of data as questions, in the layouts of configs/task too, and what keeps a row from being one."""

from pathlib import Path
from typing import Any

import orjson
import pytest

from mindbatch.config.compose import compose_task
from mindbatch.io.errors import ConfigError
from mindbatch.tasks.evaluate.questions import Examples, Question, read_questions
from mindbatch.tasks.evaluate.schema import EvaluateConfig
from mindbatch.tasks.evaluate.task_schema import AnswerConfig, answer_errors
from mindbatch.tasks.registry import TASKS

from .conftest import Configured


def test_choices_that_are_the_same_for_every_row(configured: Configured) -> None:
    config = configured(("acc",), data={"limit": 4}, choices=[" yes", " no"], correct_column="answer")
    assert [(each.choices, each.correct) for each in read_questions(config)] == [((" yes", " no"), 0)] * 3 + [
        ((" yes", " no"), 1)
    ]


def test_solved_examples_stand_before_each_prompt(configured: Configured, rows: Path) -> None:
    config = configured(few_shot=2, few_shot_path=str(rows), data={"skip": 4})
    texts = [question.content["text"] for question in read_questions(config)]
    assert texts == [f"0 and 0 is 0\n\n1 and 1 is 2\n\n{number} and {number} is" for number in (4, 5)]


def test_no_examples_are_asked_for_by_their_number_alone(configured: Configured, rows: Path) -> None:
    """A task's own file of examples needs no further word."""
    config = configured(few_shot=0, few_shot_path=str(rows), data={"skip": 5})
    assert not [*answer_errors(config.task)]
    assert [question.content["text"] for question in read_questions(config)] == ["5 and 5 is"]
    assert [*answer_errors(AnswerConfig(few_shot_path="x"))] == [
        "task.few_shot_path: needs task.few_shot, the number of examples; 0: none of them"
    ]
    assert [*answer_errors(AnswerConfig(few_shot=2))] == [
        "task.few_shot=2: needs task.few_shot_path, the file of the examples"
    ]


def test_before_a_chat_examples_are_turns_of_it(configured: Configured, rows: Path) -> None:
    data = {"skip": 5, "chat": True, "system": "Be short."}
    [question] = read_questions(configured(few_shot=2, few_shot_path=str(rows), data=data))
    assert [(each["role"], each["content"]) for each in question.content["messages"]] == [
        ("system", "Be short."),
        ("user", "0 and 0 is"),
        ("assistant", "0"),
        ("user", "1 and 1 is"),
        ("assistant", "2"),
        ("user", "5 and 5 is"),
    ]


def test_examples_are_of_the_kind_of_the_prompt() -> None:
    chat, text = {"messages": [{"role": "user", "content": "a"}]}, {"text": "b"}
    with pytest.raises(ValueError, match=r"task\.few_shot: the prompt is text, the examples are chat"):
        Examples([(chat, "c")]).before(text)
    with pytest.raises(ValueError, match="the prompt is token ids, the examples are chat and text"):
        Examples([(chat, "c"), (text, "d")]).before({"token_ids": [1]})
    assert Examples().before(chat) == chat


def test_examples_that_are_too_few_are_refused(configured: Configured, rows: Path) -> None:
    with pytest.raises(ConfigError, match=r"task\.few_shot=7: .*sums\.jsonl has 6 rows"):
        read_questions(configured(few_shot=7, few_shot_path=str(rows)))


def test_columns_that_are_not_there_are_named_all_at_once(configured: Configured) -> None:
    with pytest.raises(ConfigError) as caught:
        read_questions(configured(("f1", "acc"), reference_column="refrence", cluster_column="set"))
    assert [line.partition(":")[0] for line in caught.value.lines] == [
        "task.choices",
        "task.reference_column='refrence'",
        "task.cluster_column='set'",
    ]
    assert "did you mean reference?" in str(caught.value)


def test_bad_rows_are_named_and_counted(configured: Configured) -> None:
    lines = [{"prompt": "a", "answer": None}, {"prompt": "b", "answer": ["c"]}, {"answer": "d"}]
    with pytest.raises(ConfigError) as caught:
        read_questions(configured(asked=lines * 4))
    assert len(caught.value.lines) == 6
    assert "asked.jsonl:1: answer=null: must be the right answer" in caught.value.lines[0]
    assert caught.value.lines[-1] == "and 3 more rows"


def test_a_reference_without_an_answer_is_refused(configured: Configured) -> None:
    asked = [{"prompt": "a", "answer": "no number"}, {"prompt": "b", "answer": ["none", "or 7"]}]
    with pytest.raises(ConfigError) as caught:
        read_questions(configured(asked=asked, extract="number"))
    [line] = caught.value.lines
    assert "asked.jsonl:1: answer='no number': task.extract=number reads no answer out of it" in line


@pytest.mark.parametrize("answer", [7, -1, True, "C", "", "1.0", None])
def test_a_right_choice_that_is_none(configured: Configured, answer: object) -> None:
    row = {"prompt": "a", "options": ["x", "y"], "answer": answer}
    with pytest.raises(ConfigError, match="must be 0 to 1, A to B, or one of the choices"):
        read_questions(configured(("acc",), asked=[row], choices="options"))


def test_a_text_as_a_whole_has_a_likelihood_only(configured: Configured) -> None:
    [first, *_] = read_questions(configured(("perplexity",), text_column="reference"))
    assert (first.text, first.references) == ("0", ())
    with pytest.raises(ConfigError, match="a text as a whole has a likelihood only"):
        read_questions(configured(("perplexity", "f1"), text_column="reference"))


def test_data_without_a_row_are_called_empty(configured: Configured, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        read_questions(configured(asked=[]))
    assert caught.value.lines == (f"data.path: {tmp_path}/asked.jsonl: holds no row",)


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
