"""The command line over changed words and files: a line for each fault, and never a traceback."""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

from model_folders import descriptions, write_folder

from fuzz.cases import Fault, Reader
from fuzz.mutations import of_bytes, of_lines
from migrate_predict_yaml import config_text, migrated
from mindbatch import cli
from mindbatch.config.schema import Task, TaskConfig
from mindbatch.io.errors import EXIT_DONE, EXIT_FAILED, EXIT_USAGE, ConfigError
from mindbatch.tasks.registry import TASKS
from predict_yamls import DYNAMIC, MCORE, OLDER
from rank_tables import plain_table

UNFORESEEN = "(run again with --verbose for the traceback)"
RUN_FOR_REAL = ("layout", "inspect", "rank-table", "runs")
MODEL = "model.checkpoint_name_or_path=model"
WORDS = (
    f"generate model=auto {MODEL} prompts=['a_b',c] decoding=top_p decoding.top_p=0.5 --print-config",
    f"generate {MODEL} prompts_file=rows.jsonl decoding.stop=['x','\\n'] decoding.max_new_tokens=7",
    f"batch {MODEL} data.path=rows.jsonl output.dir=out decoding=sampling data.limit=3",
    f"compare {MODEL} prompts=['a'] decoding=[greedy,beam4,top_p]",
    "reshard source=model target.dir=cut target.model_parallel=2 target.dtype=float16 workers=2",
    f"layout {MODEL} parallel.model_parallel=2 parallel.data_parallel=2",
    "inspect path=model limit=3 format=json filter=*.weight",
    "rank-table servers=[{server_id:10.0.0.1,device_ips:[10.1.0.1,10.1.0.2]}]",
    "rank-table action=check files=[table.json] uneven=true",
    "runs .",
)
YAML = """\
# a comment
model:
  checkpoint_name_or_path: model
decoding:
  do_sample: true
  temperature: 0.5
  stop: ['a', "\\n"]
  top_k: 3
prompts: [one, 'two: three', "\\u4f60"]
runtime: {cache_memory: 1GiB, block_size: 16}
"""


def _folder(folder: Path) -> None:
    write_folder(folder / "model", descriptions()["llama"])
    (folder / "rows.jsonl").write_text('{"prompt": "a"}\n')
    (folder / "table.json").write_text(json.dumps(plain_table(2, 4)))


def _commands(folder: Path) -> list[Path]:
    _folder(folder)
    paths = [folder / f"{number}.words" for number in range(len(WORDS))]
    for path, words in zip(paths, WORDS, strict=True):
        path.write_text("\n".join(words.split(" ")))
    return paths


def _yaml(folder: Path) -> list[Path]:
    _folder(folder)
    (folder / "mine.yaml").write_text(YAML)
    return [folder / "mine.yaml"]


def _predict_yamls(folder: Path) -> list[Path]:
    _folder(folder)
    paths = [folder / f"{name}.yaml" for name in ("mcore", "older", "dynamic")]
    for path, text in zip(paths, (MCORE, OLDER, DYNAMIC), strict=True):
        path.write_text(text.replace("FOLDER", "model"))
    return paths


def _run_without_models(task: Task) -> Callable[[TaskConfig], int]:
    """Tasks that would load a model end where they would begin."""
    if task.name in RUN_FOR_REAL:
        code: Callable[[TaskConfig], int] = importlib.import_module(task.module).run
        return code
    return lambda config: EXIT_DONE


def run_command(folder: Path, words: list[str]) -> None:
    """Runs the command line in the folder, in this process."""
    os.chdir(folder)
    errors = io.StringIO()
    with (
        patch.object(Task, "run", property(_run_without_models)),
        contextlib.redirect_stderr(errors),
        contextlib.redirect_stdout(io.StringIO()),
    ):
        code = cli.main(words)
    if code not in (EXIT_DONE, EXIT_FAILED, EXIT_USAGE):
        raise Fault(f"exit code {code}")
    for line in errors.getvalue().splitlines():
        if UNFORESEEN in line:
            raise Fault(f"unforeseen: {line}")
        if code != EXIT_DONE and not line.startswith("mindbatch: ") and words[:1] != []:
            raise Fault(f"a line without the command's name: {line[:300]!r}")


def _run_words(path: Path) -> None:
    words = os.fsdecode(path.read_bytes().replace(b"\0", b"")).split("\n")
    run_command(path.parent, words)


def _run_yaml(path: Path) -> None:
    for end in ([], ["--print-config"]):
        run_command(path.parent, ["generate", "--config", str(path), *end])


def _run_predict_yaml(path: Path) -> None:
    run_command(path.parent, ["generate", f"model.mindformers_yaml={path.name}", "prompts=['a']"])
    with contextlib.suppress(ConfigError):
        config_text(migrated(path))


READERS = [
    Reader("command_words", _commands, _run_words, of_lines(of_bytes), share=5),
    Reader("command_config", _yaml, _run_yaml, of_bytes, share=3),
    Reader("predict_yaml", _predict_yamls, _run_predict_yaml, of_bytes, share=3),
]
assert set(RUN_FOR_REAL) <= set(TASKS)
