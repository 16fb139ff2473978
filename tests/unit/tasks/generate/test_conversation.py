"""Interactive mode: answers line by line, keeps a chat's history, and survives what cannot be answered."""

import io
import sys
from pathlib import Path
from typing import Any

import pytest

from mindbatch import ConfigError, DecodingParams
from mindbatch.io.interrupts import Terminated
from mindbatch.llm import LLM
from mindbatch.prompts.messages import ChatOptions
from mindbatch.tasks.generate.conversation import INTRODUCTION, converse
from shadow_llm import load_tokenizer, make_llm

FEW = DecodingParams(max_new_tokens=6)


def typed(monkeypatch: pytest.MonkeyPatch, content: bytes, at_terminal: bool = False) -> None:
    stdin = io.TextIOWrapper(io.BytesIO(content), encoding="ascii")
    monkeypatch.setattr(stdin, "isatty", lambda: at_terminal, raising=False)
    monkeypatch.setattr(sys, "stdin", stdin)


@pytest.fixture
def asked(shadow_llm: LLM, monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """The token ids of every prompt that was run."""
    seen: list[list[int]] = []
    submit = shadow_llm.submit

    def recording(*given: Any) -> Any:
        run = submit(*given)
        seen.extend(list(request.prompt_token_ids) for request in run.requests)
        return run

    monkeypatch.setattr(shadow_llm, "submit", recording)
    return seen


def answer(llm: LLM, prompt: Any) -> str:
    return llm.generate(prompt, FEW)[0].outputs[0].text


def test_a_terminal_is_asked(
    shadow_llm: LLM, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    typed(monkeypatch, b"hello\n", at_terminal=True)
    converse(shadow_llm, FEW, chat=False)
    assert capsys.readouterr().err == f"{INTRODUCTION}\n> > \n"


def test_a_chat_keeps_its_history(
    shadow_llm: LLM, monkeypatch: pytest.MonkeyPatch, asked: list[list[int]]
) -> None:
    history: list[dict[str, str]] = [{"role": "system", "content": "be brief"}]
    expected = []
    for text in ("hello", "world"):
        history.append({"role": "user", "content": text})
        expected.append(shadow_llm.required_tokenizer.encode_chat(history))
        history.append({"role": "assistant", "content": answer(shadow_llm, history)})
    asked.clear()
    typed(monkeypatch, b"hello\nworld\n")
    converse(shadow_llm, FEW, chat=True, options=ChatOptions(system="be brief"))
    assert asked == expected


def test_a_prompt_that_cannot_be_run_is_not_the_end(
    shadow_llm: LLM, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    good = answer(shadow_llm, "hello") + "\n"
    typed(monkeypatch, b"x" * 300 + b"\n\xff\nhello\n")
    assert converse(shadow_llm, FEW, chat=False) == 0
    captured = capsys.readouterr()
    assert captured.out == good
    first, second = captured.err.splitlines()
    assert first.startswith("mindbatch: your prompt: the prompt has 300 tokens")
    assert second == "mindbatch: your prompt: not valid UTF-8: byte 0xff at position 0"


def test_what_the_model_lacks_is_told_before_asking(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="^interactive=true: the model's folder has no tokenizer"):
        converse(make_llm(None), FEW, chat=False)
    plain = make_llm(load_tokenizer(tmp_path, chat_template=None))
    with pytest.raises(ConfigError, match="^chat=true: the model's tokenizer has no chat template"):
        converse(plain, FEW, chat=True)


@pytest.mark.parametrize("kind", [KeyboardInterrupt, Terminated])
@pytest.mark.parametrize("at_terminal", [True, False])
def test_ctrl_c_at_a_terminal_ends_the_answer_only(
    at_terminal: bool,
    kind: type[KeyboardInterrupt],
    shadow_llm: LLM,
    monkeypatch: pytest.MonkeyPatch,
    asked: list[list[int]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    step, left = shadow_llm._model.engine.step, [3]

    def interrupted() -> Any:
        left[0] -= 1
        if left[0] == 0:
            raise kind
        return step()

    monkeypatch.setattr(shadow_llm._model.engine, "step", interrupted)
    typed(monkeypatch, b"hello\nworld\n", at_terminal)
    if at_terminal and kind is KeyboardInterrupt:
        assert converse(shadow_llm, FEW, chat=True) == 0
        begun, whole = capsys.readouterr().out.splitlines()
        history = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": begun}]
        question = [*history, {"role": "user", "content": "world"}]
        assert asked[1] == shadow_llm.required_tokenizer.encode_chat(question)
        assert whole == answer(shadow_llm, question)
    else:
        with pytest.raises(kind):
            converse(shadow_llm, FEW, chat=True)
