"""Live text: one output after the other, each as soon as it has the turn, the prompt as it was given."""

import io
from typing import Any

import pytest

from mindbatch import DecodingParams
from mindbatch.decoding.row import FinishReason
from mindbatch.engine.request import Request, StreamEvent
from mindbatch.llm import LLM
from mindbatch.tasks.generate.task import LiveText, ResultWriter

TWICE = DecodingParams(do_sample=True, num_return_sequences=2)


def event(key: str, index: int, text: str, finish_reason: FinishReason | None = None) -> StreamEvent:
    return StreamEvent(key, index, text, (1,), finish_reason)


def test_outputs_come_one_after_the_other() -> None:
    file = io.StringIO()
    requests = [Request("0", (1,), DecodingParams(), "p"), Request("1", (2,), TWICE, "q")]
    live = LiveText(requests, file, labelled=True)
    shown = []
    for item in (
        event("1", 1, "5"),
        event("1", 0, "6", "stop"),
        event("0", 0, "7"),
        event("1", 1, "8", "length"),
        event("0", 0, "9", "stop"),
    ):
        live.add(item)
        shown.append(file.getvalue())
    assert shown == ["[0] p", "[0] p", "[0] p7", "[0] p7", "[0] p79\n[1.0] q6\n[1.1] q58\n"]


def test_one_output_needs_no_label() -> None:
    file = io.StringIO()
    requests = [Request("0", (1,), DecodingParams(), None)]
    live = LiveText(requests, file, labelled=False)
    live.add(event("0", 0, "4", "stop"))
    assert file.getvalue() == "4\n"


@pytest.mark.parametrize("stop", [(), ("o", "天天"), ("<|",)])
def test_the_text_is_what_results_have(shadow_llm: LLM, stop: tuple[str, ...]) -> None:
    prompts: list[Any] = ["hello", [40, 41], "今天", [{"role": "user", "content": "hi"}]]
    params = DecodingParams(
        do_sample=True, num_return_sequences=3, max_new_tokens=40, seed=5, stop=stop, temperature=0.7
    )
    run = shadow_llm.begin(prompts, params)
    live_file, file = io.StringIO(), io.StringIO()
    live = LiveText(run.requests, live_file, labelled=True)
    writer = ResultWriter([request.key for request in run.requests], file, as_json=False, labelled=True)
    for item in run:
        live.add(item)
        writer.add(item)
    assert live_file.getvalue() == file.getvalue()
    assert file.getvalue().startswith("[0.0] hello")


def test_a_text_that_does_not_go_on_from_the_prompt_stands_alone() -> None:
    file = io.StringIO()
    requests = [Request("0", (1,), DecodingParams(), "p")]
    live = LiveText(requests, file, labelled=True, with_prompt=False)
    live.add(event("0", 0, "4", "stop"))
    assert file.getvalue() == "[0] 4\n"
