"""Every task in a folder with a module for each name that a program may import: none of them is executed."""

import subprocess
import sys
from pathlib import Path

import pytest

from import_traps import LAID, lay_traps

ROWS = '{"q": "hello", "own": {"regex": "[a-z ]{2}"}}\n{"q": "user", "own": null}\n'
MODEL = "model.checkpoint_name_or_path=model"
TASKS = {
    "batch": f"{MODEL} data.path=rows.jsonl output.dir=run data.template={{{{q}}}} data.decoding_column=own",
    "runs": "run",
    "diff": "run run",
    "plan": f"{MODEL} parallel.model_parallel=2",
    "reshard": "source=model target.dir=out target.model_parallel=2 workers=2",
    "inspect": "model",
    "rank-table": "devices=[0,1]",
}
WITH_MINDSPORE = {  # as batch has it
    "doctor": "",
    "generate": f"{MODEL} prompts=hello",
    "compare": f"{MODEL} prompts=hello decoding=[greedy,top_p]",
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "tasks", [TASKS, pytest.param(WITH_MINDSPORE, marks=pytest.mark.on_demand)], ids=["first", "others"]
)
def test_no_task_executes_what_lies_in_the_current_folder(
    tmp_path: Path, small_gpt2: Path, tasks: dict[str, str]
) -> None:
    lay_traps(tmp_path, besides=("mindbatch",))  # python -m takes that one from here: it was asked to
    (tmp_path / "model").symlink_to(small_gpt2)
    (tmp_path / "rows.jsonl").write_text(ROWS)
    for task, arguments in tasks.items():
        command = [sys.executable, "-m", "mindbatch", task, *arguments.split()]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, check=False)
        assert not (tmp_path / LAID).exists(), (task, (tmp_path / LAID).read_text())
        assert b"Traceback" not in done.stderr, (task, done.stderr)
        if task in ("batch", "reshard"):
            assert done.returncode == 0, (task, done.stderr)
