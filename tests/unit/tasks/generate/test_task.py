"""What generate takes, and its results: in the order of the prompts, live, as text or JSON, in files."""

import io
import json
import os
from pathlib import Path
from typing import Any

import pytest

from mindbatch import DecodingParams
from mindbatch.config.compose import compose_task
from mindbatch.dataset.rows import DataRow
from mindbatch.decoding.row import FinishReason
from mindbatch.engine.request import CompletionOutput, Request, RequestOutput, StreamEvent
from mindbatch.io.errors import ConfigError
from mindbatch.llm import LLM
from mindbatch.run.generation import outcome_of
from mindbatch.run.result_rows import FinishedRow, OutputOptions, result_lines
from mindbatch.tasks.generate.schema import GenerateConfig
from mindbatch.tasks.generate.task import LiveText, ResultWriter, destination
from mindbatch.tasks.registry import TASKS


def result(key: str, *texts: str, prompt: str | None = "p") -> RequestOutput:
    outputs = [CompletionOutput(i, text, [7, 8], "stop", -0.5) for i, text in enumerate(texts)]
    return RequestOutput(key, prompt, [1, 2], outputs, seconds=0.25)


def written(results: list[RequestOutput], keys: list[str], **how: object) -> str:
    file = io.StringIO()
    writer = ResultWriter(keys, file, **({"as_json": False, "labelled": True} | how))
    for output in results:
        writer.add(output)
    return file.getvalue()


def test_a_failed_row_prints_no_text_and_holds_nobody_up() -> None:
    failed = RequestOutput.failed("0", "too long")
    assert written([result("1", "b"), failed], ["0", "1"]) == "[1] pb\n"


@pytest.mark.parametrize(
    ("output", "options", "text"),
    [
        (result("0", "a"), {"labelled": False}, "pa\n"),
        (result("0", "a"), {"with_prompt": False}, "[0] a\n"),
        (result("0", "a", "b", prompt=None), {}, "[0.0] a\n[0.1] b\n"),
        (result("0", "", prompt=None), {"labelled": False, "has_text": False}, "[7, 8]\n"),
    ],
    ids=["alone", "not going on from the prompt", "samples", "token ids"],
)
def test_what_is_written_of_an_output(output: RequestOutput, options: dict[str, bool], text: str) -> None:
    assert written([output], ["0"], **options) == text


def test_json_has_what_a_run_writes_and_the_token_ids() -> None:
    good = result("0", "今天\u2028\n")
    good.outputs[0].logprobs = [{7: -0.25, 9: -2.0}, {8: -0.25}]
    good.prompt_logprobs = [None, {2: -1.5}]
    prompts = {"0": "p", "1": [3]}
    text = written([good, RequestOutput.failed("1", "no", "q")], ["0", "1"], as_json=True, prompts=prompts)
    first, second = map(json.loads, text.removesuffix("\n").split("\n"))
    row = DataRow(key="0", source="data:1", line=1, content={"text": "p"})
    file = io.BytesIO()
    with result_lines(file, OutputOptions(token_ids=True)) as add:
        add(FinishedRow(row, outcome_of(good, "")[1]))
    assert first.pop("prompt_token_ids") == [1, 2]
    assert first == json.loads(file.getvalue())
    assert first["generations"][0]["text"] == "今天\u2028\n"
    assert second == {"key": "1", "prompt": [3], "error": "no"}


def test_a_file_appears_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "out.txt"
    path.write_text("old")
    with destination(str(path)) as file:
        file.write("今天")
        assert path.read_text() == "old"
    assert path.read_text(encoding="utf-8") == "今天"

    def interrupted() -> None:
        with destination(str(path)) as file:
            file.write("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert path.read_text(encoding="utf-8") == "今天"
    assert os.listdir(tmp_path) == ["out.txt"]


def test_without_a_path_results_go_to_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    with destination(None) as file:
        print("text", file=file)
    print("more")
    assert capsys.readouterr().out == "text\nmore\n"


MODEL = "model=tiny_gpt2"


@pytest.mark.parametrize("suffix", [".json", ".csv", ".parquet", ".jsonl.gz"])
def test_other_data_is_for_batch(suffix: str, tmp_path: Path) -> None:
    file = tmp_path / f"rows{suffix}"
    file.write_text("[]")
    with pytest.raises(ConfigError, match=rf"or \.jsonl; .* mindbatch batch data\.path={file}"):
        compose_task(TASKS["generate"], [MODEL, f"prompts_file={file}"]).finish()


def test_tools_are_a_list_or_a_file(tmp_path: Path) -> None:
    file = tmp_path / "tools.json"
    file.write_text("[]")
    given = [MODEL, "prompts=Hi", "chat=true", "chat_template_kwargs={enable_thinking: false}"]
    config = compose_task(TASKS["generate"], [*given, f"tools={file}"]).finish()
    assert isinstance(config, GenerateConfig)
    assert config.tools == str(file)
    assert config.chat_template_kwargs == {"enable_thinking": False}
    with pytest.raises(ConfigError, match=r"tools=.*no\.json: no such file"):
        compose_task(TASKS["generate"], [*given, f"tools={tmp_path}/no.json"]).finish()


@pytest.mark.parametrize("option", ["system=x", "tools=[{a: 1}]", "chat_template_kwargs={a: 1}"])
def test_what_only_chats_have(option: str) -> None:
    name = option.partition("=")[0]
    with pytest.raises(
        ConfigError,
        match=f"^{name}=.*: has no effect with chat=false; set chat=true, give messages or remove it",
    ):
        compose_task(TASKS["generate"], [MODEL, "prompts=Hi", option]).finish()
    for chats in ("messages=[{role: user, content: Hi}]", "prompts=[[{role: user, content: Hi}]]"):
        assert compose_task(TASKS["generate"], [MODEL, chats, option]).finish()


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


@pytest.mark.parametrize(
    ("prompt", "options", "text"),
    [
        (None, {"labelled": False}, "4\n"),
        ("p", {"labelled": True, "with_prompt": False}, "[0] 4\n"),  # it does not go on from the prompt
    ],
)
def test_one_output(prompt: str | None, options: dict[str, bool], text: str) -> None:
    file = io.StringIO()
    live = LiveText([Request("0", (1,), DecodingParams(), prompt)], file, **options)
    live.add(event("0", 0, "4", "stop"))
    assert file.getvalue() == text


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
