"""What is scored behind a prompt: the text, and the tokens of the whole that reach beyond the prompt."""

from pathlib import Path
from typing import Any

import pytest
from small_tokenizers import CHATML, sentencepiece_like, unigram, write_folder

from ice_tokenizers import loaded, model_file, write
from mindbatch.prompts.tokenizer import Tokenizer
from mindbatch.tasks.evaluate.requests import Continuations
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


def test_white_space_at_the_end_of_a_prompt_is_the_prompts_unless_a_word_has_it(tmp_path: Path) -> None:
    tokenizer = made(tmp_path, sentencepiece_like())
    continuations = Continuations(None, tokenizer)
    assert continuations.tokens(text("a\n"), "b") == (tokenizer.encode("a\nb"), 1)
    assert continuations.tokens(text("a "), "b") == (tokenizer.encode("a b"), 1)
    assert continuations.tokens(text("a "), "hi") == (tokenizer.encode("a hi"), 1)


def test_a_character_of_several_tokens_is_scored_whole(tmp_path: Path) -> None:
    tokenizer = made(tmp_path, sentencepiece_like())
    assert Continuations("", tokenizer).tokens(text("a"), "\u597d") == (tokenizer.encode("a\u597d"), 3)


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
