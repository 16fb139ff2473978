"""What is scored: the tokens of a whole that reach beyond the prompt; the requests of a file."""

from pathlib import Path
from typing import Any

import pytest
from small_tokenizers import CHATML, sentencepiece_like, unigram, write_folder

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

CHAT = {"messages": [{"role": "user", "content": "hi"}]}
LLAMA_2 = (
    "{% for m in messages %}{% if m.role == 'user' %}{{ '<s>[INST] ' + m.content + ' [/INST]' }}"
    "{% else %}{{ ' ' + m.content + ' </s>' }}{% endif %}{% endfor %}"
)
BARE = LLAMA_2.replace("' ' + m", "'' + m")
THINKING = LLAMA_2.replace("' ' + m", "' hm ' + m")


def text(content: str) -> dict[str, Any]:
    return {"text": content}


def made(folder: Path, backend: Any, **config: Any) -> Tokenizer:
    tokenizer = Tokenizer.load(write_folder(folder, backend, config))
    assert tokenizer is not None
    return tokenizer


@pytest.mark.parametrize(
    ("prompt", "answer", "expected"),
    [
        ("Lily saw a cat.", "It was", " It was"),
        ("Lily saw a cat.", " It was", " It was"),
        ("Lily saw a cat. ", "It was", "It was"),
        ("Q: who?\n", "I", "I"),
        ("Q: who?", "\nI", "\nI"),
        ("Q:\u3000", "I", "I"),
    ],
)
def test_one_space_stands_where_no_white_space_does(prompt: str, answer: str, expected: str) -> None:
    tokenizer = shared_tokenizer()
    assert Continuations(None, tokenizer).text(text(prompt), answer) == expected
    assert Continuations("", tokenizer).text(text(prompt), answer) == answer
    assert Continuations(" ", tokenizer).text(text(prompt), answer) == " " + answer
    ids = {"token_ids": tokenizer.encode(prompt)}
    assert Continuations(None, tokenizer).text(ids, answer) == expected
    assert Continuations(None, tokenizer).tokens(ids, answer) == Continuations(None, tokenizer).tokens(
        text(prompt), answer
    )


@pytest.mark.needs("transformers")
def test_the_same_text_has_the_same_tokens_whoever_has_the_space(tmp_path: Path) -> None:
    """And those are scored that stand for a character behind the prompt, of the text encoded as a whole."""
    for tokenizer in (shared_tokenizer(), made(tmp_path, sentencepiece_like())):
        continuations, whole = Continuations(None, tokenizer), tokenizer.encode("you hi")
        found = [
            continuations.tokens(text(prompt), answer)
            for prompt, answer in (("you", "hi"), ("you", " hi"), ("you ", "hi"))
        ]
        assert [tokens for tokens, _ in found] == [whole] * 3
        assert tokenizer.decode(whole[-found[0][1] :]).strip() == "hi"
        assert found[0] == found[1]


@pytest.mark.needs("transformers")
def test_white_space_at_the_end_of_a_prompt_is_the_prompts_unless_a_word_has_it(tmp_path: Path) -> None:
    tokenizer = made(tmp_path, sentencepiece_like())
    continuations = Continuations(None, tokenizer)
    assert continuations.tokens(text("a\n"), "b") == (tokenizer.encode("a\nb"), 1)
    assert continuations.tokens(text("a "), "b") == (tokenizer.encode("a b"), 1)
    assert continuations.tokens(text("a "), "hi") == (tokenizer.encode("a hi"), 1)


@pytest.mark.needs("transformers")
def test_a_character_of_several_tokens_is_scored_whole(tmp_path: Path) -> None:
    tokenizer = made(tmp_path, sentencepiece_like())
    assert Continuations("", tokenizer).tokens(text("a"), "\u597d") == (tokenizer.encode("a\u597d"), 3)


@pytest.mark.needs("transformers")
def test_control_texts_in_a_prompt_are_text_and_move_nothing(tmp_path: Path) -> None:
    tokenizer = made(tmp_path, sentencepiece_like(), chat_template=CHATML)
    continuations = Continuations(None, tokenizer)
    for prompt in ("</s> a</s>", "a<s", "a<"):
        for answer, count in (("b", 2), ("</s>b", 6), ("b</s>", 6)):
            tokens, scored = continuations.tokens(text(prompt), answer)
            assert (tokens, scored) == (tokenizer.encode(f"{prompt} {answer}"), count)
            chat = {"messages": [{"role": "user", "content": prompt}]}
            tokens, scored = continuations.tokens(chat, answer)
            assert tokens[:-scored] == tokenizer.encode_chat(chat["messages"])
            assert tokenizer.decode(tokens[-scored:]).strip() == answer


@pytest.mark.needs("transformers")
def test_what_a_tokenizer_puts_behind_a_text_does_not_stand_between(tmp_path: Path) -> None:
    """T5's ends every text with </s>."""
    tokenizer = made(tmp_path, unigram())
    tokens, scored = Continuations(None, tokenizer).tokens(text("a"), "b")
    assert (tokens, scored) == (tokenizer.encode("a b", add_special_tokens=False), 2)


def test_nothing_before_a_continuation_is_the_beginning_of_a_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first token has no probability otherwise."""
    tokenizer = shared_tokenizer()
    monkeypatch.setattr(tokenizer, "bos_token_id", 3)
    alone = tokenizer.encode("four")
    assert Continuations(None, tokenizer).tokens(text(""), "four") == ([3, *alone], len(alone))


@pytest.mark.needs("transformers")
@pytest.mark.parametrize(
    ("template", "expected"),
    [(CHATML, "hi"), (LLAMA_2, " hi"), (BARE, "hi"), (THINKING, " hi"), ("{{ messages[2:]", "hi")],
)
def test_in_a_chat_the_template_says_what_stands_before_an_answer(
    tmp_path: Path, template: str, expected: str
) -> None:
    """A word of its own between the two is not the answer's: a space then, as behind a text."""
    tokenizer = made(tmp_path, sentencepiece_like(), chat_template=template)
    assert Continuations(None, tokenizer).text(CHAT, "hi") == expected
    assert Continuations(None, tokenizer).text(CHAT, " hi") == " hi"
    assert Continuations("\n", tokenizer).text(CHAT, "hi") == "\nhi"
    tokenizer.close()


@pytest.mark.needs("transformers")
def test_a_chat_and_its_answer_are_encoded_as_one_text(tmp_path: Path) -> None:
    tokenizer = made(tmp_path, sentencepiece_like(), chat_template=LLAMA_2)
    tokens, scored = Continuations(None, tokenizer).tokens(CHAT, "hi")
    assert tokens == tokenizer.encode("<s>[INST] hi [/INST] hi", add_special_tokens=False, allow_special=True)
    assert (tokens[-scored:], scored) == (tokenizer.encode(" hi", add_special_tokens=False)[-1:], 1)
    assert tokens[:-scored] == tokenizer.encode_chat(CHAT["messages"])
    tokenizer.close()


def test_continuations_stand_behind_what_an_output_follows(tmp_path: Path) -> None:
    """ChatGLM-6B's texts end with [gMASK] and <sop>; an answer behind them begins a text."""
    tokenizer = loaded(write(tmp_path, model_file(), num_image_tokens=0))
    for content in (text("two and two is"), CHAT, {"token_ids": tokenizer.encode("two and")}):
        tokens, scored = Continuations(None, tokenizer).tokens(content, "four")
        assert tokens[-scored:] == tokenizer.encode("four", add_special_tokens=False)
        assert tuple(tokens[-scored - 2 : -scored]) == tokenizer.output_start


def question(**parts: object) -> Question:
    return Question(**{"key": "k", "source": "data:1", "content": {"text": "two and two is"}, **parts})  # type: ignore[arg-type]


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
