"""Which `mindbatch` of a job runs the task: the one of the first node, and none in a dry run."""

from collections.abc import Callable
from pathlib import Path

import pytest

from mindbatch.config.model_task import ModelTaskConfig
from mindbatch.config.schema import TaskConfig
from mindbatch.io.errors import ConfigError
from mindbatch.replicas import start
from mindbatch.tasks.launching import run_in_job
from task_configs import config_of

Configure = Callable[..., ModelTaskConfig]
TWO = "parallel.data_parallel=2"
NODES = ("launch.local_worker_num=1", "launch.master_addr=127.0.0.1", "launch.master_port=47119")


@pytest.fixture
def configure(model_folder: Path) -> Configure:
    def configured(*overrides: str) -> ModelTaskConfig:
        given = [f"model.checkpoint_name_or_path={model_folder}", "prompts=Hi", *overrides]
        return config_of("generate", *given)

    return configured


TABLE = Path(__file__).parents[3] / "examples/rank_table.json"


@pytest.fixture(autouse=True)
def _a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINDBATCH_JOB_KEY", "ab" * 32)


def run(config: TaskConfig) -> int:
    return 7


def test_only_what_asks_for_more_than_this_process_is_launched(configure: Configure) -> None:
    asked = {"launch=srun", "launch.dry_run=true", TWO}
    assert {each for each in (*asked, "launch.hang_seconds=9") if configure(each).is_launched} == asked


def test_one_process_needs_no_launcher(configure: Configure, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_in_job(configure("launch=rank_table", f"launch.rank_table={TABLE}"), run) == 7
    said = "mindbatch: launch=rank_table: one process needs no launcher; parallel.* makes more of them\n"
    assert capsys.readouterr().err == said


def test_ray_finds_a_place_for_one_process_too(
    configure: Configure, capsys: pytest.CaptureFixture[str]
) -> None:
    config = configure()
    config.launch.launcher = "ray"  # which need not be installed here
    assert config.is_launched
    assert run_in_job(config, run) == 7
    assert config.job.launcher == "ray"
    assert capsys.readouterr().err == ""


def test_copies_for_one_process_would_all_run_it(
    configure: Configure, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run_in_job(configure("launch=srun"), run) == 7
    for name, text in {"STEP_ID": "0", "STEP_NUM_TASKS": "2", "PROCID": "1", "JOB_ID": "3"}.items():
        monkeypatch.setenv(f"SLURM_{name}", text)
    with pytest.raises(ConfigError, match="srun has started 2 processes, to which the 1 process of"):
        run_in_job(configure("launch=srun"), run)


def test_another_node_serves_it(
    configure: Configure, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(start, "serve_node", lambda setup, logs: [*setup.ranks][0])
    assert run_in_job(configure(TWO, *NODES, "launch.node_rank=1"), run) == 1
    assert capsys.readouterr().err == "mindbatch: node 1: ranks 1 to 1 for node 0 at 127.0.0.1:47119\n"


def test_a_copy_that_msrun_starts_as_its_scheduler_has_nothing_to_do(
    configure: Configure, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in {
        "MS_ROLE": "MS_SCHED",
        "MS_SCHED_HOST": "127.0.0.1",
        "MS_SCHED_PORT": "47120",
        "MS_WORKER_NUM": "2",
    }.items():
        monkeypatch.setenv(name, text)
    assert run_in_job(configure(TWO), run) == 0


@pytest.mark.parametrize("overrides", [(), (TWO,)], ids=" ".join)
def test_a_dry_run_starts_nothing(
    overrides: tuple[str, ...], configure: Configure, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_in_job(configure(*overrides, "launch.dry_run=true"), run) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("node 0: ranks 0 to 1" if overrides else "one process: this one")


def test_faults_come_before_the_task(configure: Configure, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MINDBATCH_JOB_KEY")
    with pytest.raises(ConfigError, match="MINDBATCH_JOB_KEY is not set"):
        run_in_job(configure(TWO, *NODES), run)
