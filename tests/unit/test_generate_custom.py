"""tools/generate_custom.py: what its flags become for `mindbatch generate`, and what is refused."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest

import generate_custom
from mindbatch import cli
from mindbatch.io.errors import ConfigError
from mindbatch.model_spec.registry import MODEL_TYPES
from task_configs import config_of

DEVICE = "DEVICE_ID"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(DEVICE, "")
    monkeypatch.delenv(DEVICE)
    return tmp_path


def run(monkeypatch: pytest.MonkeyPatch, *flags: str) -> list[str]:
    """The overrides that `mindbatch generate` gets."""
    monkeypatch.setattr(sys, "argv", ["generate_custom.py", *flags])
    monkeypatch.setattr(cli, "entry_point", lambda: None)
    generate_custom.main()
    task, *overrides = sys.argv[1:]
    assert task == "generate"
    return overrides


def composed(monkeypatch: pytest.MonkeyPatch, *flags: str) -> Any:
    return config_of("generate", *run(monkeypatch, *flags))


def refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *flags: str) -> list[str]:
    with pytest.raises(SystemExit) as left:
        run(monkeypatch, *flags)
    assert left.value.code == 2
    return capsys.readouterr().err.splitlines()


SHIPPED = ("--model_type", "tiny_gpt2", "--input_data", "one")


def test_what_is_not_given_is_as_in_mindformers(monkeypatch: pytest.MonkeyPatch) -> None:
    config = composed(monkeypatch, *SHIPPED)
    assert config.prompts == ["one"]
    assert (config.model.batch_size, config.model.seq_length, config.model.use_past) == (1, None, True)
    decoding = config.decoding
    assert (decoding.max_new_tokens, decoding.do_sample, decoding.top_k) == (128, True, 3)
    assert (decoding.top_p, decoding.temperature, decoding.repetition_penalty) == (1.0, 1.0, 1.0)


def test_each_flag_has_its_effect(monkeypatch: pytest.MonkeyPatch) -> None:
    flags = "--batch_size 3 --seq_length 64 --use_past False --max_new_tokens 5 --do_sample yes --top_k 7"
    more = "--top_p 0.5 --temperature 0.25 --repetition_penalty 1.5 decoding.seed=9 stream=true"
    config = composed(monkeypatch, *SHIPPED, *flags.split(), *more.split())
    assert (config.model.batch_size, config.model.seq_length, config.model.use_past) == (3, 64, False)
    decoding = config.decoding
    assert (decoding.max_new_tokens, decoding.do_sample, decoding.top_k) == (5, True, 7)
    assert (decoding.top_p, decoding.temperature, decoding.repetition_penalty) == (0.5, 0.25, 1.5)
    assert (decoding.seed, config.stream) == (9, True)


def test_without_sampling_only_what_is_given_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    greedy = (*SHIPPED, "--do_sample", "False", "--repetition_penalty", "1.2")
    assert composed(monkeypatch, *greedy).decoding.repetition_penalty == 1.2
    with pytest.raises(ConfigError, match="top_k=5 has no effect"):
        composed(monkeypatch, *greedy, "--top_k", "5")
    assert composed(monkeypatch, *greedy, "--top_k", "1").decoding.top_k == 1


@pytest.mark.parametrize("text", ["-1 $(touch x)", '"${oc.env:HOME}"', "two\nlines", "[a, b]", "\\"])
def test_a_prompt_arrives_as_it_is(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    assert composed(monkeypatch, "--model_type", "tiny_gpt2", f"--input_data={text}").prompts == [text]


def test_a_file_has_a_prompt_on_each_line(monkeypatch: pytest.MonkeyPatch, here: Path) -> None:
    """In which a backslash and n is a line break, as in MindFormers."""
    (here / "p.txt").write_text("one,\ntwo\n")
    config = composed(monkeypatch, "--model_type", "tiny_gpt2", "--input_data", "p.txt")
    assert (config.prompts, config.prompts_file) == (None, "p.txt")
    (here / "p.txt").write_text("one,\ntwo\\nlines ${x}\n")
    config = composed(monkeypatch, "--model_type", "tiny_gpt2", "--input_data", "p.txt")
    assert config.prompts == ["one,", "two\nlines ${x}"]


@pytest.fixture
def folder(here: Path) -> Path:
    made = here / "a, model"
    made.mkdir()
    (made / "config.json").write_text('{"model_type": "llama", "num_attention_heads": 4}')
    return made


def test_the_name_of_a_mindformers_model_says_its_type(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    flags = ("--checkpoint_path", str(folder), "--input_data", "x")
    model = composed(monkeypatch, "--model_type", "llama2_7b", *flags).model
    assert (model.type, model.checkpoint_name_or_path) == ("llama", str(folder))
    assert composed(monkeypatch, "--model_type", "qwen2_5_7b", *flags).model.type == "qwen2"


def test_a_folder_as_type_is_the_model_or_has_its_tokenizer(
    monkeypatch: pytest.MonkeyPatch, folder: Path, here: Path
) -> None:
    model = composed(monkeypatch, "--model_type", str(folder), "--input_data", "x").model
    assert (model.type, model.checkpoint_name_or_path, model.tokenizer) == ("auto", str(folder), None)
    (here / "tokens").mkdir()
    (here / "tokens/tokenizer.json").write_text("{}")
    flags = ("--checkpoint_path", str(folder), "--input_data", "x")
    overrides = run(monkeypatch, "--model_type", "tokens", *flags)
    assert 'model.tokenizer="tokens"' in overrides
    assert f'model.checkpoint_name_or_path="{folder}"' in overrides


def test_processes_are_those_of_mindbatch(monkeypatch: pytest.MonkeyPatch) -> None:
    flags = ("--use_parallel", "True", "--data_parallel", "2", "--model_parallel", "4", "launch.log_dir=logs")
    overrides = run(monkeypatch, *SHIPPED, *flags)
    assert {"parallel.data_parallel=2", "parallel.model_parallel=4", "launch.log_dir=logs"} <= {*overrides}


def test_a_device_is_named_for_mindspore(monkeypatch: pytest.MonkeyPatch) -> None:
    run(monkeypatch, *SHIPPED)
    assert DEVICE not in os.environ
    run(monkeypatch, *SHIPPED, "--device_id", "3", "runtime=ascend")
    assert os.environ[DEVICE] == "3"


def test_every_fault_is_told_at_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], here: Path
) -> None:
    (here / "p.txt").write_bytes(b"a\\nb\n\n\xff\n")
    flags = "--model_type baichuan_7b --input_data p.txt --model_parallel 2 --device_id 1 --do_sample maybe"
    more = "--top_kk=3 --top_p=7 runtime=asend"
    assert refused(monkeypatch, capsys, *flags.split(), *more.split()) == [
        "generate_custom.py: --do_sample 'maybe': must be True or False",
        "generate_custom.py: --top_kk: unknown flag; did you mean --top_k?",
        "generate_custom.py: --model_type 'baichuan_7b': not a folder, and does not start with one of "
        + ", ".join(MODEL_TYPES),
        "generate_custom.py: p.txt, line 2: the line is empty",
        "generate_custom.py: p.txt, line 3: not valid UTF-8: byte 0xff at position 0",
        "generate_custom.py: --model_parallel 2: has no effect without --use_parallel True",
        "generate_custom.py: --device_id 1: CPUs are not numbered; use runtime=ascend for an NPU",
        "generate_custom.py: runtime=asend: no such option; there are ascend, cpu; did you mean ascend?",
        "generate_custom.py: decoding.top_p=7.0: must be above 0 and at most 1",
    ]


def test_without_flags_all_that_must_be_given_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert refused(monkeypatch, capsys) == [
        "generate_custom.py: --model_type must be given: a shipped model, a folder, or a name like llama2_7b",
        "generate_custom.py: --input_data must be given: a prompt, or a file with one on each line",
    ]


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (
            "--model_type llama2_7b --input_data x",
            "--checkpoint_path must be given: the folder of the llama model",
        ),
        (
            "--model_type tiny_gpt2",
            "--input_data must be given: a prompt, or a file with one on each line",
        ),
        (
            "--model_type tiny_gpt2 --input_data prompts.txt",
            "--input_data 'prompts.txt': no such file",
        ),
        (
            "--model_type tiny_gpt2 --input_data one --use_parallel True --device_id 1",
            "--device_id 1: has no effect with --use_parallel True, where each process has its own device",
        ),
    ],
)
def test_a_fault_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], flags: str, line: str
) -> None:
    assert refused(monkeypatch, capsys, *flags.split())[-1] == f"generate_custom.py: {line}"
