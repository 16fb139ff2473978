"""Streamers: our own prints what generate gives, and MindFormers' take what they expect."""

import io
import os
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from mindbatch import ConfigError, DecodingParams, MindBatchError, TextStreamer
from mindbatch.backends.mindformers.imports import stub_hyper_parallel
from mindbatch.engine.request import Request, StreamEvent
from mindbatch.engine.streaming import StreamerFeed
from mindbatch.llm import LLM
from mindbatch.prompts.tokenizer import Tokenizer
from shadow_llm import END, greedy_tokens, make_llm


class Recorder:
    def __init__(self) -> None:
        self.calls: list[Any] = []

    def put(self, value: Any) -> None:
        self.calls.append(value)

    def end(self) -> None:
        self.calls.append("end")


@pytest.mark.parametrize("seed", range(5))
def test_prints_the_prompt_and_the_text_of_generate(seed: int, shadow_llm: LLM) -> None:
    params = DecodingParams(do_sample=True, max_new_tokens=40, seed=seed)
    file = io.StringIO()
    streamer = TextStreamer(shadow_llm.required_tokenizer, file=file)
    (result,) = shadow_llm.generate("hello 今天", params, streamer=streamer)
    assert file.getvalue() == f"hello 今天{result.outputs[0].text}\n"


def test_a_character_appears_once_it_is_whole(shadow_tokenizer: Tokenizer) -> None:
    file = io.StringIO()
    streamer = TextStreamer(shadow_tokenizer, skip_prompt=True, file=file)
    streamer.put([3])
    shown = []
    for token in shadow_tokenizer.encode("茶x"):
        streamer.put(token)
        shown.append(file.getvalue())
    assert len(shown) > 2, "the character must come in several tokens"
    assert set(shown[:-2]) == {""}
    assert shown[-2:] == ["茶", "茶x"]


def test_the_end_shows_what_is_left_and_begins_anew(shadow_tokenizer: Tokenizer) -> None:
    file = io.StringIO()
    streamer = TextStreamer(shadow_tokenizer, skip_prompt=True, file=file)
    streamer.put([3])
    streamer.put(shadow_tokenizer.encode("茶")[:1])
    streamer.end()
    streamer.put(shadow_tokenizer.encode("a prompt"))
    streamer.put(shadow_tokenizer.encode("hello"))
    streamer.end()
    assert file.getvalue() == "\ufffd\nhello\n"


def test_stop_strings_special_tokens_and_several_outputs(
    shadow_llm: LLM, shadow_tokenizer: Tokenizer
) -> None:
    tokens = [*shadow_tokenizer.encode("hello wor"), END, *shadow_tokenizer.encode("ld and on")]
    for settings, expected in (
        ({"stop": ["world"]}, "hello \n"),
        ({"skip_special_tokens": False}, "hello wor<|im_end|>ld and on\n"),
    ):
        file = io.StringIO()
        streamer = TextStreamer(shadow_tokenizer, skip_prompt=True, file=file, **settings)  # type: ignore[arg-type]
        streamer.put([3])
        streamer.put(tokens)
        streamer.end()
        assert file.getvalue() == expected

    streamer = TextStreamer(shadow_llm.required_tokenizer, file=io.StringIO())
    with pytest.raises(ConfigError, match="^streamer: TextStreamer takes one output and gets 2; give one"):
        shadow_llm.generate(["a", "b"], streamer=streamer)


def test_several_outputs_are_fed_as_lists_of_lists() -> None:
    params = DecodingParams(do_sample=True, num_return_sequences=2)
    recorder = Recorder()
    feed = StreamerFeed(recorder, [Request("0", (1, 2), params), Request("1", (3,), DecodingParams())])
    feed.put(StreamEvent("1", 0, "", (7,)))
    feed.put(StreamEvent("0", 1, "", (8,)))
    assert recorder.calls == [[[1, 2], [1, 2], [3]], [[], [], [7]], [[], [8], []]]


@pytest.mark.parametrize(
    ("prompts", "options"),
    [([], {}), (5, {}), ([[10**6]], {}), ([[4]], {"top_q": 1}), ([[4]], {"on_error": "ignore"})],
)
def test_where_nothing_runs_a_streamer_is_ended(prompts: Any, options: Any, shadow_llm: LLM) -> None:
    recorder = Recorder()
    with suppress(MindBatchError):
        shadow_llm.generate(prompts, streamer=recorder, **options)
    assert recorder.calls == ["end"]


def test_a_streamer_is_ended_even_when_the_run_fails(
    shadow_llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    few, recorder = DecodingParams(max_new_tokens=2), Recorder()
    shadow_llm.generate([[4, 5]], few, streamer=recorder)
    first, second = greedy_tokens([4, 5], 2)
    assert recorder.calls == [[4, 5], [first], [second], "end"]
    monkeypatch.setattr(shadow_llm._model.engine._runner, "run", lambda step: 1 // 0)
    failing = Recorder()
    with pytest.raises(ZeroDivisionError):
        shadow_llm.generate([[4, 5]], few, streamer=failing)
    assert failing.calls == [[4, 5], "end"]


def test_a_streamer_whose_first_put_fails_is_ended(shadow_llm: LLM) -> None:
    class Failing(Recorder):
        def put(self, value: Any) -> None:
            raise ZeroDivisionError

    streamer = Failing()
    with pytest.raises(ZeroDivisionError):
        shadow_llm.generate([[4]], streamer=streamer)
    assert streamer.calls == ["end"]
    assert shadow_llm.generate([[4]], max_new_tokens=1)[0].error is None


@pytest.mark.needs("transformers")
@pytest.mark.parametrize("skip_prompt", [True, False])
def test_transformers_streamers(
    skip_prompt: bool, shadow_llm: LLM, shadow_tokenizer: Tokenizer, capsys: pytest.CaptureFixture[str]
) -> None:
    from transformers import PreTrainedTokenizerFast, TextIteratorStreamer
    from transformers import TextStreamer as TransformersStreamer

    tokenizer = PreTrainedTokenizerFast(tokenizer_object=shadow_tokenizer._backend)
    few = {"max_new_tokens": 25, "eos_token_id": ()}
    capsys.readouterr()
    printed = TransformersStreamer(tokenizer, skip_prompt=skip_prompt)
    (result,) = shadow_llm.generate("hello", streamer=printed, **few)
    ids = result.outputs[0].token_ids
    expected = tokenizer.decode(ids if skip_prompt else [*result.prompt_token_ids, *ids])
    assert capsys.readouterr().out == expected + "\n"
    read = TextIteratorStreamer(tokenizer, skip_prompt=skip_prompt, timeout=60)
    thread = threading.Thread(target=lambda: shadow_llm.generate("hello", streamer=read, **few))
    thread.start()
    assert "".join(read) == expected
    thread.join(60)
    with pytest.raises(
        ConfigError, match="^streamer: TextIteratorStreamer takes one output and gets 2; give"
    ):
        shadow_llm.generate(["a", "b"], streamer=read)
    assert list(read) == [""]


@pytest.fixture
def mindformers_tokenizer(
    tmp_path: Path, shadow_tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> Any:
    """The tokenizer of the shadow model as transformers has it, which is what these streamers take."""
    monkeypatch.setenv("LOG_MF_PATH", os.environ.get("LOG_MF_PATH", str(tmp_path / "logs")))
    stub_hyper_parallel()
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(tokenizer_object=shadow_tokenizer._backend, eos_token="<|im_end|>")


@pytest.mark.needs("mindformers")
@pytest.mark.slow
def test_mindformers_text_streamer(
    mindformers_tokenizer: Any, shadow_tokenizer: Tokenizer, capsys: pytest.CaptureFixture[str]
) -> None:
    from mindformers import TextStreamer as MindFormersStreamer

    llm = make_llm(shadow_tokenizer)
    params = DecodingParams(max_new_tokens=25, eos_token_id=())
    capsys.readouterr()
    (result,) = llm.generate("hello", params, streamer=MindFormersStreamer(mindformers_tokenizer))
    ids = result.prompt_token_ids + result.outputs[0].token_ids
    assert capsys.readouterr().out == mindformers_tokenizer.decode(ids, skip_special_tokens=True) + "\n"
    results = llm.generate(
        ["hello", "world"], params, streamer=MindFormersStreamer(mindformers_tokenizer, skip_prompt=True)
    )
    last = capsys.readouterr().out.rstrip("\n").rpartition("\r")[2]
    assert last.startswith("['")
    assert len(results) == 2


@pytest.mark.needs("mindformers")
@pytest.mark.slow
def test_mindformers_iterator_streamer_in_a_thread(
    mindformers_tokenizer: Any, shadow_tokenizer: Tokenizer
) -> None:
    from mindformers import TextIteratorStreamer

    llm = make_llm(shadow_tokenizer)
    streamer = TextIteratorStreamer(mindformers_tokenizer, skip_prompt=True, timeout=60)
    results: list[Any] = []

    def work() -> None:
        params = DecodingParams(max_new_tokens=25, eos_token_id=())
        results.extend(llm.generate("hello", params, streamer=streamer))

    thread = threading.Thread(target=work)
    thread.start()
    pieces = list(iter(streamer.__next__, None))  # its own iteration never stops: None marks the end
    thread.join(60)
    ids = results[0].outputs[0].token_ids
    assert "".join(pieces) == mindformers_tokenizer.decode(ids, skip_special_tokens=True)
    assert len(pieces) > 1
