"""`mindbatch batch` and the tasks around a run with the shipped model."""

import csv
import gzip
import json
import os
import resource
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from command_line import CommandLine, wait_until
from mindbatch.kernels.choice import kernels_in_use
from mindbatch.kernels.native_library import arithmetic_of

pytestmark = pytest.mark.slow

MODEL = "model=tiny_gpt2"
SUMS = [("sum", "9 + 8 =", " 17."), ("words", "three plus four is", " seven."), ("other", "1 + 2 =", " 3.")]


def write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def sums(command: CommandLine) -> Path:
    path = command.here / "sums.jsonl"
    write_rows(path, [{"id": key, "prompt": prompt} for key, prompt, _ in SUMS])
    return path


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def batch(command: CommandLine, *arguments: str, **options: Any) -> "subprocess.CompletedProcess[str]":
    left = sorted({*os.listdir(command.here), "runs"})
    return command.run("batch", MODEL, *arguments, leaves=left, **options)


def test_a_run_and_what_can_be_asked_of_it(command: CommandLine) -> None:
    sums(command)
    arguments = ("data.path=sums.jsonl", "data.key_column=id", "output.dir=runs/a")
    done = batch(command, *arguments)
    assert done.returncode == 0, done.stderr
    assert "3 of 3 rows done (results.jsonl)\n" in done.stderr
    manifest = json.loads((command.here / "runs/a/manifest.json").read_bytes())
    used: dict[str, object] = {"device_target": "CPU", "dtype": "float32", "model_parallel": 1}
    used |= {"kernels": arithmetic_of(kernels_in_use("auto", "CPU"), "float32"), "arithmetic": 4}
    assert manifest["computed_with"] == [{"rows": 3, **used}]
    results = lines_of(command.here / "runs/a/results.jsonl")
    assert [(row["key"], row["prompt"], row["generations"][0]["text"]) for row in results] == SUMS

    again = batch(command, *arguments)
    assert again.returncode == 0
    other = batch(command, *arguments[:2], "output.dir=runs/b", "decoding.max_new_tokens=1")
    assert other.returncode == 0
    changed = batch(command, *arguments, "decoding.max_new_tokens=1")
    assert changed.returncode == 2
    assert "decoding.max_new_tokens null -> 1" in changed.stderr

    kept = ("runs", "sums.jsonl")
    equal = command.run("diff", "runs/a", "runs/a", leaves=kept)
    assert equal.returncode == 0, equal.stderr
    different = command.run("diff", "runs/a", "runs/b", "format=json", leaves=kept)
    assert different.returncode == 1
    assert json.loads(different.stdout)["changed"] == 3
    replayed = command.run("replay", "output.dir=runs/a", "key=sum", leaves=kept)
    assert (replayed.returncode, replayed.stdout.splitlines()[-1]) == (0, "equal to the run")
    unknown = command.run("replay", "output.dir=runs/a", "key=summ", leaves=kept)
    assert unknown.returncode == 2
    listed = command.run("runs", "runs", "format=json", leaves=kept)
    assert [run["status"] for run in json.loads(listed.stdout)] == ["complete", "complete"]


@pytest.mark.parametrize(("private", "others_may"), [("true", 0), ("false", 0o044)])
def test_whom_the_files_of_a_run_are_for(own_process: CommandLine, private: str, others_may: int) -> None:
    sums(own_process)
    done = batch(
        own_process,
        "data.path=sums.jsonl",
        "decoding.max_new_tokens=1",
        "output.dir=runs/a",
        f"output.private={private}",
    )
    assert done.returncode == 0, done.stderr
    made = [own_process.here / "runs", *(own_process.here / "runs").rglob("*")]
    assert {path.stat().st_mode & 0o066 for path in made} == {others_may}


def test_a_bad_row_can_be_mended_and_tried_again(
    command: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_rows(command.here / "rows.jsonl", [{"prompt": "9 + 8 ="}, {"prompt": "9 " * 3000}, {"promt": "x"}])
    done = batch(command, "data.path=rows.jsonl", "output.dir=runs/a")
    assert done.returncode == 1
    assert done.stderr.count("failed") == 1, "their number is told once"
    assert done.stderr.endswith("1 of 3 rows done (results.jsonl), 2 failed (errors.jsonl)\n")
    errors = lines_of(command.here / "runs/a/errors.jsonl")
    assert [error["line"] for error in errors] == [2, 3]
    write_rows(
        command.here / "rows.jsonl", [{"prompt": "9 + 8 ="}, {"prompt": "1 + 2 ="}, {"prompt": "2 + 2 ="}]
    )
    monkeypatch.chdir(command.here / "runs")
    retried = command.run("retry", "output.dir=a", leaves=["rows.jsonl", "runs"])
    assert retried.returncode == 0, retried.stderr
    texts = [row["generations"][0]["text"] for row in lines_of(command.here / "runs/a/results.jsonl")]
    assert texts == [" 17.", " 3.", " 4."]


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.on_demand)],
)
def test_an_interrupted_run_says_how_it_goes_on(
    own_process: CommandLine, number: signal.Signals, code: int
) -> None:
    write_rows(own_process.here / "rows.jsonl", [{"prompt": "An increasing sequence: one,"}] * 3000)
    arguments = [MODEL, "data.path=rows.jsonl", "output.dir=runs/a", "model.batch_size=4"]
    process = own_process.started("batch", *arguments)
    ledger = own_process.here / "runs/a/ledger.jsonl"
    wait_until(lambda: ledger.exists() and ledger.stat().st_size >= 1000, process)
    process.send_signal(number)
    _, err = process.communicate()
    assert process.returncode == code
    assert b"of 3,000 rows done; the same command resumes" in err
    assert b"Traceback" not in err
    manifest = json.loads((own_process.here / "runs/a/manifest.json").read_text())
    assert manifest["status"] == "interrupted"
    assert manifest["rows"]["done"] == len(ledger.read_text().splitlines()) - 1  # that of the session


def test_rows_come_in_many_forms(command: CommandLine) -> None:
    here = command.here
    (here / "data").mkdir()
    (here / "data/a.csv").write_text('name,question\nx,"9 + 8 ="\ny,"1 + 2 ="\n')
    (here / "data/b.jsonl.gz").write_bytes(gzip.compress(b'{"question": "2 + 2 =", "name": "z"}\n'))
    done = batch(
        command,
        *("data.path=data", "data.template={{ question }}", "data.key_column=name"),
        *("output.dir=runs/a", "output.format=csv"),
    )
    assert done.returncode == 0, done.stderr
    with (here / "runs/a/results.csv").open(newline="") as file:
        assert [(row["key"], row["text"]) for row in csv.DictReader(file)] == [
            ("x", " 17."),
            ("y", " 3."),
            ("z", " 4."),
        ]


def test_the_exit_code_tells_a_full_disk_from_bad_rows(command: CommandLine) -> None:
    good = [{"prompt": f"{number} + 8 ="} for number in range(150)]
    write_rows(command.here / "rows.jsonl", [*good, {"prompt": ""}])
    arguments = (
        "data.path=rows.jsonl",
        "output.dir=runs/a",
        "decoding.max_new_tokens=8",
        "decoding.logprobs=20",
    )
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64 << 10, before[1]))  # of this process, and of what it starts
    try:
        full = batch(command, *arguments)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert (full.returncode, full.stderr.count("the same command resumes")) == (75, 1), full.stderr
    assert batch(command, *arguments).returncode == 1
    assert batch(command, *arguments, "data.max_errors=1").returncode == 0
    assert batch(command, *arguments, "data.max_errors=0").returncode == 2


def test_openai_requests_get_openai_responses(command: CommandLine) -> None:
    def request(key: str, **body: Any) -> dict[str, Any]:
        return {"custom_id": key, "method": "POST", "url": "/v1/completions", "body": body}

    write_rows(
        command.here / "requests.jsonl",
        [request("a", prompt="9 + 8 =", max_tokens=5), request("b", prompt="x", tools=[{}])],
    )
    done = batch(command, "data.path=requests.jsonl", "output.dir=runs/a")
    assert done.returncode == 1
    (response,) = lines_of(command.here / "runs/a/results.jsonl")
    assert response["custom_id"] == "a"
    assert response["response"]["body"]["choices"][0]["text"] == " 17."
    (error,) = lines_of(command.here / "runs/a/errors.jsonl")
    assert error["custom_id"] == "b"
    assert "tools" in json.dumps(error)


def test_standard_input_and_parquet(command: CommandLine) -> None:
    import pyarrow.parquet as parquet

    rows = b'{"prompt": "9 + 8 ="}\n{"prompt": "1 + 2 ="}\n'
    arguments = ("data.path=-", "output.dir=runs/a", "output.format=parquet")
    assert batch(command, *arguments, stdin=rows).returncode == 0
    table = parquet.read_table(command.here / "runs/a/results.parquet").to_pylist()
    assert [row["generations"][0]["text"] for row in table] == [" 17.", " 3."]
    assert batch(command, *arguments).returncode == 0  # what was read is kept


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (("data.path=sums.jsonl",), "output.dir"),
        (("data.path=sumss.jsonl", "output.dir=runs/a"), "did you mean sums.jsonl?"),
        (("data.path=sums.jsonl", "output.dir=runs/a", "data.prompt_column=promt"), "prompt"),
        (("data.path=sums.jsonl", "output.dir=runs/a", "data.template={{ x"), "data.template"),
        (("data.path=sums.jsonl", "output.dir=sums.jsonl"), "output.dir"),
        (("data.path=sums.jsonl", "output.dir=runs/a", "data.system=Hi"), "data.system"),
    ],
)
def test_a_mistake_leaves_nothing_behind(
    command: CommandLine, arguments: tuple[str, ...], fault: str
) -> None:
    sums(command)
    result = command.run("batch", MODEL, *arguments, leaves=["sums.jsonl"])
    assert result.returncode == 2
    assert fault in result.stderr
    assert "Traceback" not in result.stderr
