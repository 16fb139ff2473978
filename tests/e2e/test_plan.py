"""`mindbatch plan` over ranks as a command: what it prints, and what it leaves."""

import pytest

from command_line import CommandLine

pytestmark = pytest.mark.slow

PLAN = ("plan", "model=tiny_gpt2")


def test_the_layout_of_the_shipped_model(own_process: CommandLine) -> None:
    done = own_process.run(*PLAN, "parallel.model_parallel=4", "parallel.pipeline_stage=3")
    assert (done.returncode, done.stderr) == (0, "")
    assert "data_parallel 1 x model_parallel 4 x pipeline_stage 3: 12 ranks" in done.stdout
    assert "transformer.h.[0-2].attn.c_attn.weight" in done.stdout


def test_its_strategy_files_are_read_by_the_other_commands(command: CommandLine) -> None:
    words = ["parallel.data_parallel=2", "parallel.pipeline_stage=3", "layout.dir=strategy"]
    done = command.run(*PLAN, *words, leaves=["strategy"])
    assert (done.returncode, done.stderr) == (0, "")
    names = [f"ckpt_strategy_rank_{rank}.ckpt" for rank in (0, 2, 4)]
    assert sorted(path.name for path in (command.here / "strategy").iterdir()) == names
    shown = command.run("inspect", "strategy", leaves=["strategy"])
    assert "stages 0, 1, 2; 2 devices each; 6 ranks in all" in shown.stdout


def test_what_a_strategy_cannot_say_is_one_line_for_each_reason(command: CommandLine) -> None:
    done = command.run(*PLAN, "parallel.model_parallel=2", "layout.dir=strategy")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("mindbatch: layout.dir: tensors 'transformer.h.0.attn.c_attn.weight'")
    assert done.stderr.count("\n") == 1
