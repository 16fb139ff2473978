"""Sweeps: which jobs a command line stands for, where each writes, and what is refused before the first."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from mindbatch import cli
from mindbatch.config.compose import Composition, compose_task
from mindbatch.config.options import OptionFiles
from mindbatch.config.paths import configs_folder
from mindbatch.io.errors import ConfigError
from mindbatch.tasks import sweep
from mindbatch.tasks.registry import TASKS
from mindbatch.tasks.sweep import jobs_of, with_run_folders
from task_configs import config_of

OPTIONS = OptionFiles(configs_folder(), None)


def names(*overrides: str, group: str = "") -> list[str]:
    return [job.name for job in jobs_of(overrides, OPTIONS, group)]


def test_every_combination_is_a_job() -> None:
    assert names("model=tiny_gpt2", "decoding.seed='range(1,3)'".replace("'", ""), "++model.dtype=a,b") == [
        "decoding.seed=1,model.dtype=a",
        "decoding.seed=1,model.dtype=b",
        "decoding.seed=2,model.dtype=a",
        "decoding.seed=2,model.dtype=b",
    ]
    jobs = jobs_of(["+experiment=a,b", "limit=3"], OPTIONS)
    assert [job.overrides for job in jobs] == [("+experiment=a", "limit=3"), ("+experiment=b", "limit=3")]


@pytest.mark.parametrize(
    ("token", "values"),
    [
        ("decoding=glob(top_*)", ["top_h", "top_k", "top_p"]),
        ("decoding=glob(*,exclude=[t*,s*,b*,g*,m*,p*])", ["contrastive", "eta_cutoff"]),
        ("decoding=choice(greedy,beam4)", ["greedy", "beam4"]),
        ("decoding.top_p=0.5,0.9", ["0.5", "0.9"]),
        ("decoding.stop=[a],[b,c]", ["[a]", "[b,c]"]),
        ("system='a,b',c", ["'a,b'", "c"]),
    ],
)
def test_values_of_a_sweep(token: str, values: list[str]) -> None:
    key = token.partition("=")[0]
    found = names(token, "x=1,2")
    assert [*dict.fromkeys(name.rpartition(",x=")[0] for name in found)] == [
        f"{key}={text}" for text in values
    ]


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        (["decoding.seed=1"], "--multirun: no key has several values; "),
        (["prompts=['a,b', c]", 'stop=["x,y"]', "Hi there"], "--multirun: no key has several values; "),
        (
            ["decoding.top_p=interval(0,1)"],
            "decoding.top_p=interval(0,1): an interval has no end of values; ",
        ),
        (["decoding=glob(zzz*)"], "decoding=glob(zzz*): stands for no value"),
        (["limit=range(1,100000000)"], "limit=range(1,100000000): stands for more than 1,000 values, "),
        (
            ["x=shuffle(range(1,1e9))", "y=1,2"],
            "x=shuffle(range(1,1e9)): stands for more than 1,000 values, ",
        ),
        (["x=range(0,1,1e-300)"], "x=range(0,1,1e-300): stands for more than 1,000 values, "),
        (["x=range(1.0,2.0,0)"], "x=range(1.0,2.0,0): stands for more than 1,000 values, "),
        (["x=range(40)", "y=range(40)"], "--multirun: 1,600 jobs; at most 1,000 are run by one command"),
    ],
)
def test_no_sweep(overrides: list[str], line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        jobs_of(overrides, OPTIONS)
    assert caught.value.lines[0].startswith(line)


def test_what_a_task_compares_becomes_its_columns() -> None:
    """Other keys are jobs, each with all columns."""
    given = ["decoding=top_p,sampling", "decoding.seed=1,2", "limit=5,6", "decoding.max_new_tokens=9"]
    jobs = jobs_of(given, OPTIONS, "decoding")
    assert [job.name for job in jobs] == ["limit=5", "limit=6"]
    assert jobs[0].overrides[:2] == ("limit=5", "decoding.max_new_tokens=9")
    words = ["model=tiny_gpt2", "data.path=-", "metrics=[exact_match]", *jobs[0].overrides[1:]]
    config = config_of("evaluate", *words)
    assert list(config.variants) == ["top_p,seed=1", "top_p,seed=2", "sampling,seed=1", "sampling,seed=2"]
    first, *_, last = config.variants.values()
    assert (first.top_p, first.seed, last.top_p, last.seed, last.max_new_tokens) == (0.9, 1, 1.0, 2, 9)
    [only] = jobs_of(["decoding=top_p", "decoding.seed=1,2"], OPTIONS, "decoding")
    assert only.overrides == ('decoding=[{"seed": 1, "option": "top_p"}, {"seed": 2, "option": "top_p"}]',)


def composed(*overrides: str, task: str = "batch") -> Composition:
    return compose_task(TASKS[task], ["model=tiny_gpt2", *overrides])


def test_each_job_has_a_folder_below_output_dir(tmp_path: Path) -> None:
    jobs = jobs_of(["data.path=a/b c,d", f"hydra.sweep.dir={tmp_path}/x"], OPTIONS)
    schema = TASKS["batch"].schema
    one, other = with_run_folders(jobs, schema, lambda given: composed(*given))
    assert one.folder_name.startswith("data.path=_a_b_c_-")
    assert one.overrides[0] == 'data.path="a/b c"'
    assert other.overrides == ("data.path=d", f'output.dir="{tmp_path}/x/data.path=d"')
    assert other.folder == tmp_path / "x/data.path=d"
    swept = jobs_of([f"output.dir={tmp_path}/a,{tmp_path}/b"], OPTIONS)
    assert with_run_folders(swept, schema, lambda given: composed(*given)) == swept


@pytest.mark.parametrize(
    ("words", "both"),
    [
        (["output.file=o"], ["output.file=o:"]),
        (["output.file=o${decoding.seed}"], []),
        (["output.file=a,b"], ["output.file=a:", "output.file=b:"]),
    ],
)
def test_no_two_jobs_write_the_same(
    words: list[str],
    both: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sweep, "_run", lambda program, arguments: 0)
    given = ["generate", "-m", "model=tiny_gpt2", "prompts=Hi", "decoding=sampling", *words]
    assert cli.main([*given, "decoding.seed=1,2"]) == (2 if both else 0)
    errors = [line for line in capsys.readouterr().err.splitlines() if "both write" in line]
    assert [line.split()[1] for line in errors] == both


def test_no_two_jobs_upload_to_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep, "_run", lambda program, arguments, *overrides: 0)
    given = ["batch", "-m", "model=tiny_gpt2", "data=number_words", "decoding=sampling", "decoding.seed=1,2"]
    given += [f"output.dir={tmp_path}/s"]
    address = "hf://datasets/org/answers"
    assert cli.main([*given, f"output.upload={address}"]) == 2
    assert (
        f"output.upload={address}: decoding.seed=1 and decoding.seed=2 would both" in capsys.readouterr().err
    )
    assert cli.main([*given, f"output.upload={address}/${{decoding.seed}}"]) == 0
    assert cli.main([*given[:-1], "output.dir=s3://bucket/s"]) == 2
    assert "output.dir=s3://bucket/s: a run and its ledger are in a local folder" in capsys.readouterr().err


def test_jobs_that_only_read_a_run_share_it(tmp_path: Path) -> None:
    jobs = jobs_of(["key=1,2", f"output.dir={tmp_path}"], OPTIONS)
    assert with_run_folders(jobs, TASKS["replay"].schema, lambda given: composed(*given)) == jobs


def test_errors_of_all_jobs_come_before_the_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep, "_run", lambda program, arguments: pytest.fail("a job was begun"))
    words = ["batch", "-m", "model=tiny_gpt2", "data.path=-", f"output.dir={tmp_path}/s"]
    assert cli.main([*words, "decoding.temperature=-1,0.5", "decoding.top_kk=3"]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "mindbatch: decoding.top_kk: unknown key; did you mean decoding.top_k?",
        "mindbatch: decoding.temperature=-1.0: must be 0 (greedy) or from 0.000001 to 1000000",
        "mindbatch: decoding.temperature=0.5 has no effect with decoding.do_sample=false; "
        "set decoding.do_sample=true or remove it",
    ]


def test_a_job_that_fails_does_not_end_the_sweep(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = list[list[str]]()

    def run(program: object, arguments: list[str]) -> int:
        ran.append(arguments)
        return 1 if "decoding.seed=1" in arguments else 0

    monkeypatch.setattr(sweep, "_run", run)
    file = tmp_path / "run.yaml"
    file.write_text("decoding: sampling\n")
    words = ["batch", "-m", "model=tiny_gpt2", "data.path=-", f"--config={file}", f"output.dir={tmp_path}/s"]
    assert cli.main([*words, "decoding.seed=1,2"]) == 1
    assert [arguments[:2] for arguments in ran] == [["batch", f"--config={file}"]] * 2
    assert ran[1][-1] == f'output.dir="{tmp_path}/s/decoding.seed=2"'
    _, first, second = capsys.readouterr().out.splitlines()
    assert first.split()[:2] == ["decoding.seed=1", "exit"]
    assert second.split()[:2] == ["decoding.seed=2", "done"]


@pytest.mark.parametrize(
    ("codes", "code"), [([0, 0], 0), ([1, 2, 0], 1), ([1, 75], 75), ([143, 0], 75), ([-9, 1], 75)]
)
def test_a_sweep_with_an_unfinished_job_is_unfinished(
    codes: list[int], code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = iter(codes)
    monkeypatch.setattr(sweep, "_run", lambda program, arguments: next(left))
    words = ["batch", "-m", "model=tiny_gpt2", "data.path=-", f"output.dir={tmp_path}/s"]
    assert cli.main([*words, f"decoding.seed=range({len(codes)})"]) == code


def test_an_interrupt_ends_the_job_that_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    waited = list[str]()

    class Process:
        def wait(self) -> int:
            waited.append("wait")
            if len(waited) == 1:
                raise KeyboardInterrupt
            return 143

        def send_signal(self, number: int) -> None:
            waited.append(signal.Signals(number).name)

    monkeypatch.setattr(sweep, "spawn", lambda *given, **options: Process())
    with pytest.raises(KeyboardInterrupt):
        sweep._run(cli.run_job, ["generate"])
    assert waited == ["wait", "SIGTERM", "wait"]


@pytest.mark.slow
def test_a_sweep_is_resumed_as_a_run_is(tmp_path: Path) -> None:
    """The same command again runs what is missing; a value that is added runs alone."""
    (tmp_path / "q.jsonl").write_text('{"prompt": "An increasing sequence: one,"}\n')

    def run(seeds: str) -> subprocess.CompletedProcess[str]:
        words = [
            "batch",
            "-m",
            "model=tiny_gpt2",
            "data.path=q.jsonl",
            "output.dir=runs",
            "decoding=sampling",
        ]
        command = [sys.executable, "-I", "-m", "mindbatch", *words, f"decoding.seed={seeds}", "progress=none"]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)

    first = run("1,2")
    assert first.returncode == 0, first.stderr
    results = tmp_path / "runs/decoding.seed=1/results.jsonl"
    before = results.read_bytes()
    again = run("1,2,3")
    assert (again.returncode, results.read_bytes()) == (0, before)
    assert [line.split()[:2] for line in again.stdout.splitlines()[1:]] == [
        [f"decoding.seed={seed}", "done"] for seed in (1, 2, 3)
    ]
    ledgers = [(tmp_path / f"runs/decoding.seed={seed}/ledger.jsonl").read_bytes() for seed in (1, 3)]
    assert [ledger.count(b'"ledger"') for ledger in ledgers] == [1, 1]
