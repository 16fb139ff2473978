"""The scripts with MindFormers' names, as they are run from a checkout."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]
SCRIPTS = sorted((CHECKOUT / "scripts").glob("*.sh"))
TABLE = CHECKOUT / "examples/rank_table.json"


def run(here: Path, script: str, *arguments: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        ["bash", CHECKOUT / "scripts" / script, *arguments],
        cwd=here,
        env={"PATH": os.environ["PATH"], "HOME": str(here), "PYTHON": sys.executable, **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_a_program_on_each_device(tmp_path: Path) -> None:
    show = tmp_path / "it's a program.sh"
    show.write_text('printf "%s|" "$RANK_ID" "$@"')
    order = f"""bash "{show}" '$(touch made)' "a  b" ';' -x"""
    done = run(tmp_path, "run_dist_gen.sh", order, str(TABLE), "[0,2]", "2", INPUT_DATA="-1; `touch made`")
    assert done.returncode == 0, done.stderr
    assert sorted(done.stderr.splitlines()[1:]) == [
        f"rank {rank}: {rank}|$(touch made)|a  b|;|-x|--input_data|-1; `touch made`|" for rank in "01"
    ]
    assert not (tmp_path / "made").exists()


def test_the_exit_code_is_that_of_the_job(tmp_path: Path) -> None:
    done = run(tmp_path, "msrun_launcher.sh", "bash -c 'exit 6'", "1")
    assert done.returncode == 6


def test_mindbatch_gets_the_terminal_and_its_own_exit_code(tmp_path: Path) -> None:
    order = "mindbatch generate launch.rank_table=x model=nosuch"
    done = run(tmp_path, "run_dist_gen.sh", order, str(TABLE), "[0,2]", "2")
    assert done.returncode == 2
    assert done.stderr == ("run_dist_gen.sh: EXECUTE_ORDER: launch.rank_table= is given by run_dist_gen.sh\n")
    done = run(tmp_path, "run_dist_gen.sh", "mindbatch generate model=nosuch", str(TABLE), "[0,2]", "2")
    assert done.returncode == 2
    assert done.stderr.startswith("mindbatch: model=nosuch: ")


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
def test_shellcheck_has_nothing_to_say() -> None:
    done = subprocess.run(["shellcheck", "-x", *SCRIPTS], cwd=CHECKOUT, capture_output=True, text=True)
    assert done.stdout == ""


@pytest.mark.slow
def test_generate_custom_prints_the_text(tmp_path: Path) -> None:
    (tmp_path / "prompts.txt").write_text("An increasing sequence: one,\nAn increasing sequence: two,\nA\n")
    flags = ["--model_type", "tiny_gpt2", "--input_data", "prompts.txt", "--do_sample", "False"]
    done = subprocess.run(
        [sys.executable, CHECKOUT / "tools/generate_custom.py", *flags, "--max_new_tokens", "8"],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "An increasing sequence: one, two, three, four, five," in done.stdout
    assert "An increasing sequence: two, three, four, five, six," in done.stdout


TEXT = "An increasing sequence: one, two, three, four, five,"


@pytest.mark.slow
def test_run_dist_gen_prints_the_text_of_input_data(tmp_path: Path) -> None:
    order = "mindbatch generate model=tiny_gpt2 parallel.data_parallel=2 decoding.max_new_tokens=8"
    text = "An increasing sequence: one,"
    done = run(tmp_path, "run_dist_gen.sh", order, str(TABLE), "[0,2]", "2", INPUT_DATA=text)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{TEXT}\n"
    assert {"rank_0.log", "rank_1.log"} <= {*os.listdir(tmp_path / "output/log")}


@pytest.mark.slow
def test_more_prompts_than_replicas_by_msrun_launcher(tmp_path: Path) -> None:
    (tmp_path / "prompts.txt").write_text("An increasing sequence: one,\n" * 3)
    flags = (
        "--model_type tiny_gpt2 --do_sample False --max_new_tokens 8 --use_parallel True --data_parallel 2"
    )
    order = f"python3 '{CHECKOUT}/tools/generate_custom.py' {flags} --input_data prompts.txt"
    done = run(tmp_path, "msrun_launcher.sh", order, "2")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"[{row}] {TEXT}" for row in range(3)]
    assert {"rank_0.log", "rank_1.log"} <= {*os.listdir(tmp_path / "output/msrun_log")}
