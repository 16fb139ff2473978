"""Results: in the order of the prompts whoever ends first, as text or JSON, in files that are whole."""

import io
import json
import os
from pathlib import Path

import pytest

from mindbatch.dataset.rows import DataRow
from mindbatch.engine.request import CompletionOutput, RequestOutput
from mindbatch.run.generation import outcome_of
from mindbatch.run.result_rows import FinishedRow, OutputOptions, result_lines
from mindbatch.tasks.generate.task import ResultWriter, destination, label


def result(key: str, *texts: str, prompt: str | None = "p") -> RequestOutput:
    outputs = [CompletionOutput(i, text, [7, 8], "stop", -0.5) for i, text in enumerate(texts)]
    return RequestOutput(key, prompt, [1, 2], outputs, seconds=0.25)


def written(results: list[RequestOutput], keys: list[str], **how: object) -> str:
    file = io.StringIO()
    writer = ResultWriter(keys, file, **({"as_json": False, "labelled": True} | how))
    for output in results:
        writer.add(output)
    return file.getvalue()


def test_a_result_waits_for_those_before_it() -> None:
    file = io.StringIO()
    writer = ResultWriter(["0", "1", "2"], file, as_json=False, labelled=True)
    shown = []
    for key in ("2", "0", "1"):
        writer.add(result(key, f"text {key}"))
        shown.append(file.getvalue())
    assert shown == ["", "[0] ptext 0\n", "[0] ptext 0\n[1] ptext 1\n[2] ptext 2\n"]


def test_a_failed_row_prints_no_text_and_holds_nobody_up() -> None:
    failed = RequestOutput.failed("0", "too long")
    assert written([result("1", "b"), failed], ["0", "1"]) == "[1] pb\n"


def test_one_text_has_no_label_and_samples_have_numbers() -> None:
    assert written([result("0", "a")], ["0"], labelled=False) == "pa\n"
    assert written([result("3", "a", "b", prompt=None)], ["3"]) == "[3.0] a\n[3.1] b\n"
    assert label("3", 1, 2) == "3.1"


def test_token_ids_where_there_is_no_text() -> None:
    assert written([result("0", "", prompt=None)], ["0"], labelled=False, has_text=False) == "[7, 8]\n"


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
        add(FinishedRow("0", row, outcome_of(good, "")[1]))
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
    assert os.listdir(tmp_path) == ["out.txt"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_an_interrupted_run_leaves_the_old_file(tmp_path: Path, error: type[BaseException]) -> None:
    path = tmp_path / "out.txt"
    path.write_text("old")

    def interrupted() -> None:
        with destination(str(path)) as file:
            file.write("half")
            raise error

    with pytest.raises(error):
        interrupted()
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["out.txt"]


def test_without_a_path_results_go_to_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    with destination(None) as file:
        print("text", file=file)
    print("more")
    assert capsys.readouterr().out == "text\nmore\n"


def test_a_text_that_does_not_go_on_from_the_prompt_stands_alone() -> None:
    assert written([result("0", "a")], ["0"], with_prompt=False) == "[0] a\n"
