"""`mindbatch compare` over the shadow model: runs, the printed page, the files."""

import json
from pathlib import Path
from typing import Any

import pytest

from mindbatch import cli
from mindbatch.config.compose import compose_task
from mindbatch.decoding import DecodingParams
from mindbatch.evaluation import REFERENCE_FREE
from mindbatch.llm import LLM
from mindbatch.prompts.prompts import read_prompts
from mindbatch.tasks.evaluate import compare
from mindbatch.tasks.evaluate.compare import compared, generated, run_strategies
from mindbatch.tasks.evaluate.compare_schema import CompareConfig
from mindbatch.tasks.evaluate.results import Evaluation, as_json
from mindbatch.tasks.registry import TASKS
from shadow_llm import load_tokenizer, make_llm
from small_gpt2 import write_small_gpt2

FEW = {"max_new_tokens": 6, "eos_token_id": ()}
STRATEGIES = {
    "greedy": DecodingParams(**FEW),
    "sampling": DecodingParams(do_sample=True, **FEW),
    "greedy too": DecodingParams(**FEW),
}


@pytest.fixture
def llm(tmp_path: Path) -> LLM:
    return make_llm(load_tokenizer(tmp_path / "tokenizer"))


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, llm: LLM) -> Any:
    """Runs the command line with the shadow model in place of the folder's."""
    folder = write_small_gpt2(tmp_path / "model")
    monkeypatch.setattr(LLM, "from_config", lambda *settings: llm)

    def run(*arguments: str) -> int:
        model = f"model.checkpoint_name_or_path={folder}"
        return cli.main(
            ["compare", model, "decoding=[greedy,sampling]", "decoding.max_new_tokens=5", *arguments]
        )

    return run


def test_every_strategy_gives_what_it_gives_alone(llm: LLM) -> None:
    rows = read_prompts(prompts=["hello", [300, 301], "world"])
    columns, questions = run_strategies(llm, STRATEGIES, rows, 2)
    assert [*columns] == list(STRATEGIES)
    assert [question.content["text"] for question in questions] == ["hello", "token ids 300 301", "world"]
    for name, column in columns.items():
        alone = llm.generate(["hello", [300, 301], "world"], STRATEGIES[name])
        assert column.outputs == {
            number: tuple(generated(output, has_text=True) for output in result.outputs)
            for number, result in enumerate(alone)
        }
        assert column.errors == {}
        assert len(column.speeds) == 1
        assert column.speeds[0] > 0


def test_the_warm_up_is_not_timed_and_not_reported(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that counts the tokens generated so far in place of seconds."""
    monkeypatch.setattr(compare.time, "perf_counter", lambda: float(llm.statistics.generated_tokens))
    rows = read_prompts(prompts=["hello", "world", "more"])
    columns, _ = run_strategies(llm, STRATEGIES, rows, 2)
    assert [column.num_tokens for column in columns.values()] == [18, 18, 18]
    assert [column.speeds for column in columns.values()] == [[1.0], [1.0], [1.0]]
    assert llm.statistics.generated_tokens == 3 * (12 + 18)
    assert [len(column.outputs) for column in columns.values()] == [3, 3, 3]


@pytest.fixture
def config(model_folder: Path) -> CompareConfig:
    words = [f"model.checkpoint_name_or_path={model_folder}", "prompts=Hi"]
    made = compose_task(TASKS["compare"], words).finish()
    assert isinstance(made, CompareConfig)
    return made


def evaluation_of(llm: LLM, config: CompareConfig, prompts: list[Any]) -> Evaluation:
    config.variants, config.warm_up, config.timings = STRATEGIES, False, 1
    return compared(llm, config, read_prompts(prompts=prompts))


def test_an_evaluation_of_strategies_has_every_metric_without_references(
    llm: LLM, config: CompareConfig
) -> None:
    evaluation = evaluation_of(llm, config, ["hello", [300, 301], "x" * 500, *"abcdef"])
    assert [scores.metric.name for scores in evaluation.scores] == [*REFERENCE_FREE]
    assert evaluation.baseline == "greedy"
    assert [question.content["text"] for question in evaluation.questions[:2]] == [
        "hello",
        "token ids 300 301",
    ]
    assert [len(column.errors) for column in evaluation.columns.values()] == [1, 1, 1]
    assert evaluation.alike == ["greedy and greedy too generated the same texts throughout"]
    greedy = evaluation.columns["greedy"]
    assert greedy.num_tokens == 8 * 6
    assert len(greedy.speeds) == 1
    content = as_json(evaluation)["columns"]["greedy too"]
    assert all(abs(found["value"]) < 1e-12 for found in content["differences"].values())
    assert content["results"]["output_perplexity,none"] > 1


def test_the_page_shows_texts_side_by_side_and_a_table(
    command: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(r'prompts=["hello\n[bold]\u001b[2J", [300, 301]]', "limit=1", "timings=1") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "1. hello\\n[bold]\\x1b[2J"
    assert [line.split()[0] for line in lines[1:3]] == ["greedy", "sampling"]
    assert lines[4].startswith("1 more prompts; limit=N shows the texts of more")
    assert lines[6] == "comparison: 2 questions"
    assert lines[8].split() == [*REFERENCE_FREE, "tokens/s", "tokens"]
    greedy, sampling = (line.split() for line in lines[10:12])
    assert (greedy[0], sampling[0], greedy[-1]) == ("greedy", "sampling", "10")
    assert lines[13] == "2 questions: too few to tell differences from chance"


def test_prompts_of_token_ids_and_errors_are_shown(command: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(f"prompts=[[300, 301], {'x' * 500}]") == 1
    page = capsys.readouterr().out
    assert "1. token ids 300 301" in page
    assert page.count("(prompts[1]: the prompt has") == 2
    assert "more prompts" not in page


def test_the_command_writes_files(command: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "new" / "folder"
    assert command("prompts=[hello, world]", f"output.dir={folder}", "decoding.num_return_sequences=1") == 0
    out, err = capsys.readouterr()
    assert err == f"mindbatch: written {folder}/results.json\nmindbatch: written {folder}/comparison.html\n"
    assert out.startswith("1. hello\n")
    assert sorted(path.name for path in folder.iterdir()) == [
        "columns",
        "comparison.config.yaml",
        "comparison.html",
        "results.json",
    ]
    page = (folder / "comparison.html").read_text()
    assert page.startswith("<!doctype html>")
    assert "every column ran the first 2 prompts" in page
    assert "Prefix caching was off" in page
    assert "Tokens per second" in page
    content = json.loads((folder / "results.json").read_bytes())
    assert list(content["columns"]) == ["greedy", "sampling"]
    sample, *_ = (folder / "columns/model+greedy/samples_comparison.jsonl").read_bytes().splitlines()
    [output] = json.loads(sample)["outputs"]
    assert (len(output["token_ids"]), output["finish_reason"]) == (5, "length")
    saved = compose_task(
        TASKS["compare"], ["output.overwrite=true"], folder / "comparison.config.yaml"
    ).finish()
    assert list(saved.variants) == ["greedy", "sampling"]


def test_without_a_tokenizer_token_ids_are_the_words(llm: LLM) -> None:
    [result] = llm.generate([[300, 301]], STRATEGIES["greedy"])
    output = generated(result.outputs[0], has_text=False)
    assert output.text == " ".join(map(str, result.outputs[0].token_ids))


def test_json_on_standard_output(command: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("prompts=[hello]", "output.format=json", "warm_up=false") == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert len(json.loads(out)["columns"]["greedy"]["tokens_per_second"]) == 3


def test_a_folder_that_cannot_be_written_is_said_before_anything_runs(
    command: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "taken").touch()
    assert command("prompts=[hello]", f"output.dir={tmp_path}/taken") == 2
    assert capsys.readouterr().err.endswith("taken: is a file; give a folder\n")
