"""Token sequences whose last tokens are scored."""

from pathlib import Path

import pytest

from ice_tokenizers import loaded, model_file, write
from mindbatch.dataset.data_config import DataConfig
from mindbatch.dataset.dataset import Dataset
from mindbatch.dataset.rows import DataRow, RowMaker
from mindbatch.decoding import DecodingParams
from mindbatch.io.errors import ConfigError
from mindbatch.prompts.tokenizer import Tokenizer
from mindbatch.tasks.evaluate.questions import Question
from mindbatch.tasks.evaluate.requests import (
    Continuations,
    answer_rows,
    choice_rows,
    generation_rows,
    text_rows,
    write_requests,
)
from mindbatch.tasks.evaluate.runs import requests_data
from stub_job import shared_tokenizer


def question(**parts: object) -> Question:
    return Question(**{"key": "k", "place": "data:1", "content": {"text": "two and two is"}, **parts})  # type: ignore[arg-type]


@pytest.mark.parametrize("stride", [None, 1, 3, 100])
@pytest.mark.parametrize("length", [1, 2, 8, 9, 31])
def test_windows_score_each_token_of_a_text_once(stride: int | None, length: int) -> None:
    tokenizer = shared_tokenizer()
    text = "x y" * length
    whole = tokenizer.encode(text)
    found = [*text_rows([question(text=text)], tokenizer, 8, stride)]
    starts = [row["decoding"]["prompt_logprobs_start"] for row in found]
    assert all(len(row["prompt"]) <= 8 and start > 0 for row, start in zip(found, starts, strict=True))
    scored = [token for row, start in zip(found, starts, strict=True) for token in row["prompt"][start:]]
    begun = [] if whole[0] in tokenizer.special_ids or tokenizer.bos_token_id is None else whole[:1]
    assert scored == begun + whole[1:]


@pytest.fixture(scope="module")
def chatglm_6b(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """Its texts end with [gMASK] and <sop>."""
    return loaded(write(tmp_path_factory.mktemp("ice"), model_file(), num_image_tokens=0))


@pytest.mark.parametrize("length", [1, 2, 8, 31])
def test_windows_stand_behind_what_an_output_follows(chatglm_6b: Tokenizer, length: int) -> None:
    whole = chatglm_6b.encode("xy" * length, add_special_tokens=False)
    found = [*text_rows([question(text="xy" * length)], chatglm_6b, 8, None)]
    scored = []
    for row in found:
        assert tuple(row["prompt"][:2]) == chatglm_6b.output_start
        assert len(row["prompt"]) <= 8
        scored += row["prompt"][row["decoding"]["prompt_logprobs_start"] :]
    assert scored == whole


def test_keys_say_which_question_and_which_part() -> None:
    asked = [question(choices=(" a", " b")), question(choices=(" c", " d"), content={"text": "e"})]
    assert [row["key"] for row in choice_rows(asked, Continuations(None, shared_tokenizer()))] == [
        "0.0",
        "0.1",
        "1.0",
        "1.1",
    ]
    assert [*generation_rows(asked, DataConfig())] == [
        {"key": "0", "prompt": "two and two is"},
        {"key": "1", "prompt": "e"},
    ]


def test_a_chat_keeps_its_own_tools_and_variables(tmp_path: Path) -> None:
    """And those of all are in no file: they may be secrets."""
    messages = [{"role": "user", "content": "hi"}]
    own = {"tools": [{"name": "own"}], "chat_template_kwargs": {"enable_thinking": False, "key": "secret"}}
    shared = DataConfig(tools=[{"name": "all"}], chat_template_kwargs={"key": "secret"})
    asked = [
        question(content={"messages": messages, **own}),
        question(content={"messages": messages, "tools": shared.tools}),
    ]
    path = tmp_path / "generation.jsonl"
    assert write_requests(path, generation_rows(asked, shared)) == 2
    assert b"secret" not in path.read_bytes()
    data = requests_data(path, shared, is_scored=False)
    maker = RowMaker(data, DecodingParams(), False)
    rows = [
        maker.make(number, record)
        for number, record in enumerate(Dataset(str(path), "jsonl", 1 << 20).records())
    ]
    contents = [row.content for row in rows if isinstance(row, DataRow)]
    assert contents[0]["tools"] == own["tools"]
    assert contents[0]["chat_template_kwargs"] == own["chat_template_kwargs"]
    assert contents[1]["tools"] == shared.tools


@pytest.mark.parametrize(("prompt", "answer", "prefix"), [("a ", "", None), ("a", "", "")])
def test_an_answer_without_a_token_has_no_likelihood(prompt: str, answer: str, prefix: str | None) -> None:
    asked = [question(references=(answer,), content={"text": prompt})]
    with pytest.raises(ConfigError, match=r"data:1: the answer '' has no token whose likelihood counts"):
        [*answer_rows(asked, Continuations(prefix, shared_tokenizer()))]


def test_a_file_without_requests_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no row has anything to be scored"):
        write_requests(tmp_path / "r.jsonl", [])
