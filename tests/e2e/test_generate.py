"""`mindbatch generate` in all its ways in and out, with a real (random) model."""

import json
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from command_line import CommandLine, wait_until

pytestmark = pytest.mark.slow

FEW = "decoding.max_new_tokens=8"
COUNTS = r"\d+ prompts?, [\d,]+ tokens? in [\d.]+ s \([\d,]+ tokens/s\)\n"


class Finished(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines()]


Generate = Callable[..., Finished]


@pytest.fixture
def generate(small_gpt2: Path, command: CommandLine) -> Generate:
    """Runs the command with the small model."""

    def run(*arguments: str, stdin: bytes = b"", leaves: tuple[str, ...] = ()) -> Finished:
        model = f"model.checkpoint_name_or_path={small_gpt2}"
        done = command.run("generate", model, *arguments, stdin=stdin, leaves=leaves)
        return Finished(done.returncode, done.stdout, done.stderr)

    return run


def texts(finished: Finished) -> list[str]:
    """The continuations of a JSON run."""
    return [output["text"] for row in finished.rows for output in row.get("generations", [])]


def test_one_prompt_is_continued_and_nothing_else_is_said(generate: Generate) -> None:
    plain = generate("prompts=hello", FEW)
    as_json = generate("prompts=[hello]", FEW, "output.format=json")
    assert (plain.code, plain.err, as_json.code, as_json.err) == (0, "", 0, "")
    assert plain.out == f"hello{texts(as_json)[0]}\n"


def test_several_prompts_are_numbered_and_counted(generate: Generate) -> None:
    plain = generate('prompts=[hello, "world, 今天", [300, 301]]', FEW)
    first, second, third = texts(
        generate('prompts=[hello, "world, 今天", [300, 301]]', FEW, "output.format=json")
    )
    assert plain.out == f"[0] hello{first}\n[1] world, 今天{second}\n[2] {third}\n"
    assert plain.code == 0
    assert re.fullmatch(COUNTS, plain.err)


def test_json_rows(generate: Generate) -> None:
    finished = generate(
        "prompts=[hello]",
        "output.format=json",
        "decoding=sampling",
        "decoding.num_return_sequences=2",
        "decoding.logprobs=2",
        "decoding.prompt_logprobs=1",
        "decoding.eos_token_id=[]",
        FEW,
    )
    (row,) = finished.rows
    assert set(row) == {
        "key", "prompt", "prompt_token_ids",
        "generations", "prompt_tokens", "generated_tokens", "prompt_logprobs",
    }  # fmt: skip
    assert (row["key"], row["prompt"], row["generated_tokens"]) == ("0", "hello", 16)
    assert row["prompt_logprobs"][0] is None
    assert [output["index"] for output in row["generations"]] == [0, 1]
    for output in row["generations"]:
        assert (len(output["token_ids"]), output["finish_reason"]) == (8, "length")
        chosen = [
            found[str(token)] for found, token in zip(output["logprobs"], output["token_ids"], strict=True)
        ]
        assert output["cumulative_logprob"] == pytest.approx(sum(chosen))


def test_a_file_with_bad_rows_is_done_as_far_as_it_goes(generate: Generate, tmp_path: Path) -> None:
    path = tmp_path / "prompts.txt"
    path.write_bytes(b"hello\r\n\n\xff\nworld\n" + b"x" * 200)
    finished = generate(f"prompts_file={path}", FEW)
    assert finished.code == 1
    lines = finished.out.split("\n")
    assert lines[0].startswith("[0] hello")
    assert finished.out.count("\n[3] world") == 1
    *_, empty, broken, long = finished.err.splitlines()
    assert empty == f"mindbatch: {path}:2: the line is empty"
    assert broken == f"mindbatch: {path}:3: not valid UTF-8: byte 0xff at position 0"
    assert long.startswith(
        f"mindbatch: {path}:5: the prompt has 200 tokens and prompt and output together may"
    )
    as_json = generate(f"prompts_file={path}", FEW, "output.format=json")
    assert as_json.code == 1
    assert ["error" in row for row in as_json.rows] == [False, True, True, False, True]
    assert ["generations" in row for row in as_json.rows] == [True, False, False, True, False]


def test_prompts_from_standard_input_give_what_a_list_gives(generate: Generate) -> None:
    listed = generate("prompts=[hello, world]", FEW, "output.format=json", "decoding=sampling")
    piped = generate("prompts_file=-", FEW, "output.format=json", "decoding=sampling", stdin=b"hello\nworld")
    assert texts(piped) == texts(listed)
    assert piped.code == 0


def test_chats_go_through_the_template_and_the_answer_stands_alone(generate: Generate) -> None:
    given = generate("messages=[{role: system, content: brief}, {role: user, content: hello}]", FEW)
    asked = generate("prompts=hello", "chat=true", "system=brief", FEW)
    assert (given.code, given.err) == (0, "")
    assert given.out == asked.out
    assert "hello" not in given.out.partition("\n")[0][:5]
    row = generate("prompts=hello", "chat=true", "system=brief", FEW, "output.format=json").rows[0]
    assert row["prompt"][-1] == {"role": "user", "content": "hello"}
    assert row["prompt_token_ids"][0] == 1  # <|im_start|>
    several = generate("messages=[[{role: user, content: hello}], [{role: robot, content: x}]]", FEW)
    assert several.code == 1
    assert several.err.endswith(
        "must be one of system, developer, user, assistant, tool, function, ipython\n"
    )


@pytest.mark.parametrize(
    "more",
    [
        ("prompts=hello",),
        ('prompts=[hello, "今天", [300, 301]]', "decoding=sampling", "decoding.num_return_sequences=2"),
        ("prompts=[hello, world]", "decoding=top_p", 'decoding.stop=[o, "天"]', "decoding.max_new_tokens=60"),
        ("prompts=[hello, '']", "chat=true"),
    ],
)
def test_streamed_text_is_the_same(generate: Generate, more: tuple[str, ...]) -> None:
    plain, streamed = (
        generate("decoding.max_new_tokens=30", *more),
        generate("decoding.max_new_tokens=30", *more, "stream=true"),
    )
    assert streamed.out == plain.out != ""
    assert streamed.code == plain.code != 2
    assert streamed.err == re.sub(COUNTS, "", plain.err)


def test_a_file_is_written_with_its_configuration_beside(
    generate: Generate, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.environ["A_SECRET"] = "hello"
    how = ("decoding=sampling", FEW, "output.format=json")
    expected = texts(generate("prompts=[hello, world]", *how))
    files = ("out.jsonl", "out.jsonl.config.yaml")
    finished = generate("prompts=['${oc.env:A_SECRET}', world]", *how, "output.file=out.jsonl", leaves=files)
    assert (finished.code, finished.out) == (0, "")
    written = Path("out.jsonl").read_text(encoding="utf-8")
    assert texts(finished._replace(out=written)) == expected
    saved = Path("out.jsonl.config.yaml").read_text()
    assert "${oc.env:A_SECRET}" in saved
    assert "hello" not in saved
    again = generate("--config", "out.jsonl.config.yaml", "output.file=null", leaves=files)
    assert texts(again) == expected


def test_streaming_into_a_file(generate: Generate) -> None:
    expected = generate("prompts=hello", FEW).out
    finished = generate(
        "prompts=hello", FEW, "stream=true", "output.file=out", leaves=("out", "out.config.yaml")
    )
    assert (finished.code, finished.out, finished.err) == (0, "", "")
    assert Path("out").read_text() == expected


def test_a_conversation_over_standard_input(generate: Generate) -> None:
    finished = generate("interactive=true", FEW, stdin="hello\n今天\n\nnot read\n".encode())
    assert (finished.code, finished.err) == (0, "")
    first = generate("prompts=hello", FEW).out.removeprefix("hello")
    assert finished.out.startswith(first)
    assert len(finished.out) > len(first) + 1
    chat = generate("interactive=true", "chat=true", FEW, stdin=b"hello\n")
    assert chat.out == generate("prompts=hello", "chat=true", FEW).out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("prompts=a", "output.file=none/x"), "output.file=none/x: the folder none does not exist"),
        (("prompts=a", "model.seq_length=500"), "model.seq_length=500: the model has 128 positions"),
        (("prompts=a", "runtime.cache_memory=1kB"), "runtime.cache_memory="),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(
    generate: Generate, arguments: tuple[str, ...], said: str
) -> None:
    finished = generate(*arguments)
    assert (finished.code, finished.out) == (2, "")
    assert finished.err.startswith(f"mindbatch: {said}")
    assert finished.err.count("\n") == 1


def test_token_ids_for_a_folder_without_a_tokenizer(
    generate: Generate, small_gpt2: Path, tmp_path: Path
) -> None:
    bare = tmp_path / "bare"
    bare.mkdir()
    for name in ("config.json", "model.safetensors"):
        (bare / name).symlink_to(small_gpt2 / name)
    (bare / "model.safetensors").unlink()
    (bare / "model.safetensors").write_bytes((small_gpt2 / "model.safetensors").read_bytes())
    (bare / "config.json").unlink()
    (bare / "config.json").write_bytes((small_gpt2 / "config.json").read_bytes())
    folder = f"model.checkpoint_name_or_path={bare}"
    row = generate("prompts=[[300, 301]]", FEW, "output.format=json").rows[0]
    assert generate(folder, "prompts=[[300, 301]]", FEW).out == f"{row['generations'][0]['token_ids']}\n"
    refused = generate(folder, "prompts=[hello]")
    assert refused.code == 1
    assert "the model's folder has no tokenizer" in refused.err
    streamed = generate(folder, "prompts=[[300]]", "stream=true")
    assert streamed.code == 2
    assert streamed.err.startswith("mindbatch: stream=true: the model's folder has no tokenizer")


@pytest.mark.parametrize(
    ("number", "ending"),
    [
        (signal.SIGTERM, (143, b"mindbatch: terminated\n")),
        pytest.param(signal.SIGINT, (130, b"mindbatch: interrupted\n"), marks=pytest.mark.on_demand),
    ],
)
def test_a_signal_while_mindspore_runs(
    own_process: CommandLine, small_gpt2: Path, number: int, ending: tuple[int, bytes]
) -> None:
    """Nothing is left where the file would be. SIGINT comes in test_batch.py and test_terminal.py."""
    prompts = json.dumps(["hello"] * 2000)
    model = f"model.checkpoint_name_or_path={small_gpt2}"
    arguments = (model, f"prompts={prompts}", "decoding.max_new_tokens=100", "decoding.eos_token_id=[]")
    with own_process.started("generate", *arguments, "output.file=out") as process:
        wait_until(lambda: bool(os.listdir(own_process.here)), process)
        process.send_signal(number)
        _, err = process.communicate()
    assert (process.returncode, err) == ending
    assert os.listdir(own_process.here) == []
