"""The scripts with MindFormers' names, as they are run from a checkout."""

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import generate_custom
from command_line import CommandLine
from mindbatch import cli

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


@pytest.mark.slow
@pytest.mark.parametrize("take", [shutil.copy, os.symlink])
@pytest.mark.parametrize("script", ["run_dist_gen.sh", "msrun_launcher.sh"])
def test_a_script_beside_the_program(tmp_path: Path, script: str, take: Callable[..., object]) -> None:
    take(CHECKOUT / "scripts" / script, tmp_path / script)
    shutil.copy(CHECKOUT / "tools/generate_custom.py", tmp_path)
    flags = "--model_type tiny_gpt2 --input_data one --do_sample False --max_new_tokens 6"
    order = f"python generate_custom.py {flags} --use_parallel True --data_parallel 2"
    further = ("2",) if script == "msrun_launcher.sh" else (str(TABLE), "[0,2]", "2")
    done = run(tmp_path, str(tmp_path / script), order, *further)
    assert (done.returncode, done.stdout) == (0, "one plus four is five.\n"), done.stderr
    if take is shutil.copy:
        done = run(tmp_path, str(tmp_path / script), order, *further, PYTHON="")
        assert done.returncode == 2
        assert done.stderr.startswith(f"{script}: not in MindBatch's checkout; activate an environment ")


@pytest.mark.slow
def test_the_guides_data_parallel_sample(tmp_path: Path) -> None:
    """The whole weights in rank_0 and rank_1, a file of prompts, and the command as in MindFormers' guide."""
    shipped, weights = CHECKOUT / "examples/tiny_gpt2", tmp_path / "gpt2_ckpt"
    target = [f"target.dir={tmp_path}/whole", "target.names=mindformers", "target.format=ckpt"]
    assert cli.main(["reshard", f"source={shipped}", *target]) == 0
    for rank in range(2):
        (weights / f"rank_{rank}").mkdir(parents=True)
        shutil.copy(tmp_path / "whole/model.ckpt", weights / f"rank_{rank}/gpt2.ckpt")
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(shipped / name, weights)
    (tmp_path / "input.txt").write_text("9 + 8 =\nthree plus four is\n")
    for path in ("scripts/run_dist_gen.sh", "tools/generate_custom.py"):
        (tmp_path / Path(path).name).symlink_to(CHECKOUT / path)
    order = (
        "python generate_custom.py --model_type tiny_gpt2 --batch_size 2 --checkpoint_path ./gpt2_ckpt "
        "--use_parallel True --data_parallel 2 --model_parallel 1 --do_sample False"
    )
    done = run(
        tmp_path, f"{tmp_path}/run_dist_gen.sh", order, str(TABLE), "[0,2]", "2", INPUT_DATA="input.txt"
    )
    assert done.stdout == "[0] 9 + 8 = 17.\n[1] three plus four is seven.\n", done.stderr


class Checkout:
    """The scripts and what they read their arguments with, as after a clone: there is no .venv yet."""

    def __init__(self, folder: Path) -> None:
        self.root, self.here = folder / "checkout", folder / "here"
        self.here.mkdir()
        for name in ("scripts", "tools", "pipeline"):
            shutil.copytree(
                CHECKOUT / name, self.root / name, ignore=shutil.ignore_patterns("*.so", "__pycache__")
            )
        for name in ("setup.py", "pyproject.toml", "constraints.txt"):
            shutil.copy(CHECKOUT / name, self.root / name)

    def run(self, script: str, *arguments: str, **variables: str) -> "subprocess.CompletedProcess[str]":
        done = subprocess.run(
            ["bash", self.root / "scripts" / script, *arguments],
            cwd=self.here,
            env={"PATH": "/usr/bin:/bin", "HOME": str(self.here), **variables},
            capture_output=True,
            text=True,
            check=False,
        )
        assert not (self.root / ".venv").exists()
        return done


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    return Checkout(tmp_path_factory.mktemp("cloned"))


WRONG = {
    "run_dist_gen.sh": (["mindbatch generate", "nosuch.json", "[0,2]", "2"], "cannot be read"),
    "msrun_launcher.sh": (["python generate_custom.py"], "no such file; this project's is "),
}


@pytest.mark.slow
@pytest.mark.parametrize("script", WRONG)
def test_arguments_are_checked_before_an_environment_is_made(
    script: str, checkout: Checkout, tmp_path: Path
) -> None:
    arguments, error = WRONG[script]
    base = Path(sys.base_prefix, "bin", f"python3.{sys.version_info.minor}")
    (tmp_path / "python3").symlink_to(base)  # a Python that fits and has no MindBatch
    with_nothing = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    done = checkout.run(script, *arguments, **with_nothing)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert error in done.stderr
    done = checkout.run(script, "--help", **with_nothing)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("usage: ")


@pytest.mark.slow
@pytest.mark.parametrize("way", ["VIRTUAL_ENV", "PATH", "a link to mindbatch"])
def test_the_environment_that_is_active_runs_them(way: str, checkout: Checkout, tmp_path: Path) -> None:
    own = Path(sys.executable).parent
    path, variables = "/usr/bin:/bin", {}
    if way == "PATH":
        path = f"{own}:{path}"
    elif way == "VIRTUAL_ENV":
        variables[way] = str(own.parent)
    else:
        (tmp_path / "mindbatch").symlink_to(own / "mindbatch")
        path = f"{tmp_path}:{path}"
    done = checkout.run("msrun_launcher.sh", "mindbatch --version", "1", PATH=path, **variables)
    assert (done.returncode, done.stdout[:10]) == (0, "mindbatch "), done.stderr


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
def test_shellcheck_has_nothing_to_say() -> None:
    done = subprocess.run(["shellcheck", "-x", *SCRIPTS], cwd=CHECKOUT, capture_output=True, text=True)
    assert done.stdout == ""


@pytest.mark.slow
def test_generate_custom_prints_the_text(command: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = "An increasing sequence: one,\nAn increasing sequence: two,\nA\n"
    (command.here / "prompts.txt").write_text(prompts)
    flags = ["--model_type", "tiny_gpt2", "--input_data", "prompts.txt", "--do_sample", "False"]
    monkeypatch.setattr(sys, "argv", ["generate_custom.py", *flags, "--max_new_tokens", "8"])
    monkeypatch.setattr(cli, "entry_point", lambda: None)  # ends the process
    generate_custom.main()
    done = command.run(*sys.argv[1:], leaves=["prompts.txt"])
    assert done.returncode == 0, done.stderr
    assert "An increasing sequence: one, two, three, four, five," in done.stdout
    assert "An increasing sequence: two, three, four, five, six," in done.stdout


MODEL = "a model; $(touch made)"
START = "An increasing sequence: one,"
TEXT = f"{START} two, three, four, five,"


@pytest.fixture
def odd_folder(tmp_path: Path) -> Iterator[Path]:
    """A folder with a model and a rank table, and names that a shell would make much of."""
    folder = tmp_path / 'it\'s $(touch made); "x" *'
    shutil.copytree(CHECKOUT / "examples/tiny_gpt2", folder / MODEL)
    shutil.copy(TABLE, folder / "rank table's.json")
    yield folder
    assert not [*tmp_path.rglob("made")]


@pytest.mark.processes
def test_run_dist_gen_prints_the_text_of_input_data(odd_folder: Path) -> None:
    keys = f"model.checkpoint_name_or_path='{MODEL}' parallel.model_parallel=2 decoding.max_new_tokens=8"
    arguments = (f"mindbatch generate {keys}", "rank table's.json", "[0,2]", "2")
    done = run(odd_folder, "run_dist_gen.sh", *arguments, INPUT_DATA=START)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{TEXT}\n"
    assert {"rank_0.log", "rank_1.log"} <= {*os.listdir(odd_folder / "output/log")}


@pytest.mark.slow
@pytest.mark.processes
def test_more_prompts_than_replicas_by_msrun_launcher(odd_folder: Path) -> None:
    (odd_folder / "p;$(touch made).txt").write_text(f"{START}\n" * 3)
    model = f"--model_type '{MODEL}' --use_parallel True --data_parallel 2"
    flags = f"{model} --do_sample False --max_new_tokens 8 --input_data 'p;$(touch made).txt'"
    tool = shlex.quote(f"{CHECKOUT}/tools/generate_custom.py")
    done = run(odd_folder, "msrun_launcher.sh", f"python3 {tool} {flags}", "2")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"[{row}] {TEXT}" for row in range(3)]
    assert {"rank_0.log", "rank_1.log"} <= {*os.listdir(odd_folder / "output/msrun_log")}


CLUSTER_PROGRAM = """
import mindspore
from mindspore.communication import get_group_size, get_rank, init

mindspore.set_device("CPU")
init()
print("rank", get_rank(), "of", get_group_size(), flush=True)
"""


@pytest.mark.slow
@pytest.mark.processes
def test_a_program_of_the_users_meets_in_mindspores_cluster(tmp_path: Path) -> None:
    (tmp_path / "user.py").write_text(CLUSTER_PROGRAM)
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = run(tmp_path, "msrun_launcher.sh", "user.py", "2", PATH=programs, GLOG_v="3")
    assert done.returncode == 0, done.stderr
    for rank in range(2):
        said = (tmp_path / f"output/msrun_log/worker_{rank}.log").read_text().splitlines()
        assert f"rank {rank} of 2" in said
