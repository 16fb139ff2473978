"""The tasks of the command line: what each does, examples of it, and the module that runs it."""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Task:
    """One word of the command line. Its keys are the schema of the same name in `config/schema.py`."""

    name: str
    summary: str
    module: str
    """Holds `run(config) -> int`; imported only when the task runs."""

    verbose_key: str
    """The key that --verbose sets."""

    examples: tuple[str, ...]

    def load(self) -> Callable[[Any], int]:
        """The task's `run`, which takes the typed configuration and returns the exit code."""
        run: Callable[[Any], int] = importlib.import_module(self.module).run
        return run


_ALL = (
    Task(
        name="generate",
        summary="generate text for prompts, a file of prompts, standard input or a chat",
        module="mindbatch.tasks.generate",
        verbose_key="runtime.verbose",
        examples=(
            """mindbatch generate model=tiny_gpt2 prompts='["An increasing sequence: one,"]'""",
            """mindbatch generate model=tiny_gpt2 prompts='["An increasing sequence: one,"]' stream=true""",
            "mindbatch generate model.checkpoint_name_or_path=FOLDER prompts_file=FILE output.format=json",
            "mindbatch generate model.checkpoint_name_or_path=FOLDER decoding=top_p interactive=true",
        ),
    ),
    Task(
        name="compare",
        summary="run the same prompts under several decoding strategies and compare what comes of it",
        module="mindbatch.tasks.compare",
        verbose_key="runtime.verbose",
        examples=(
            """mindbatch compare model=tiny_gpt2 prompts='["An increasing sequence: one,"]' """
            "output.dir=compared",
            "mindbatch compare model.checkpoint_name_or_path=FOLDER prompts_file=FILE "
            "decoding='[greedy,beam4,top_p]'",
        ),
    ),
    Task(
        name="batch",
        summary="run a whole dataset; the same command again resumes, and nothing is lost or done twice",
        module="mindbatch.tasks.batch",
        verbose_key="runtime.verbose",
        examples=(
            "mindbatch batch model=tiny_gpt2 data.path=questions.jsonl output.dir=runs/a",
            "mindbatch batch model=tiny_gpt2 data=gsm8k data.path=gsm8k_test.jsonl output.dir=runs/b",
            "mindbatch batch model.checkpoint_name_or_path=FOLDER data.path=requests.jsonl data=openai "
            "output.dir=runs/c",
        ),
    ),
    Task(
        name="plan",
        summary="say what a batch would need: rows, tokens, memory, time; or what ranks hold",
        module="mindbatch.tasks.plan.task",
        verbose_key="runtime.verbose",
        examples=(
            "mindbatch plan model=tiny_gpt2 data.path=questions.jsonl calibrate=true",
            "mindbatch plan model.checkpoint_name_or_path=FOLDER parallel.model_parallel=8 layout.dir=DIR",
            "mindbatch plan model.provider=mindformers model.checkpoint_name_or_path=FOLDER "
            "parallel.model_parallel=8 layout.dir=strategy",
        ),
    ),
    Task(
        name="retry",
        summary="run the rows of a batch again that failed, with its own settings",
        module="mindbatch.tasks.retry",
        verbose_key="runtime.verbose",
        examples=("mindbatch retry output.dir=runs/a",),
    ),
    Task(
        name="replay",
        summary="run one row of a batch again and compare it with what it gave",
        module="mindbatch.tasks.replay",
        verbose_key="runtime.verbose",
        examples=("mindbatch replay output.dir=runs/a key=17",),
    ),
    Task(
        name="diff",
        summary="compare two batches row by row",
        module="mindbatch.tasks.diff",
        verbose_key="verbose",
        examples=("mindbatch diff runs/a runs/b",),
    ),
    Task(
        name="runs",
        summary="list the batches below a folder: their state, rows, speed and command",
        module="mindbatch.tasks.runs",
        verbose_key="verbose",
        examples=("mindbatch runs runs", "mindbatch runs runs format=json"),
    ),
    Task(
        name="reshard",
        summary="cut a checkpoint for other numbers of ranks, merge it, or change its format or dtype",
        module="mindbatch.tasks.reshard.task",
        verbose_key="verbose",
        examples=(
            "mindbatch reshard source=FOLDER target.dir=cut target.model_parallel=8",
            "mindbatch reshard source=cut target.dir=whole target.dtype=bfloat16 verify=true",
            "mindbatch reshard source=cut target.dir=other target.model_parallel=4 target.format=ckpt",
            "mindbatch reshard source=FOLDER target.dir=full target.names=mindformers target.format=ckpt",
            "mindbatch reshard source=FOLDER target.dir=merged lora.merge=ADAPTER",
        ),
    ),
    Task(
        name="inspect",
        summary="show what is in a checkpoint or a strategy file: tensors, shapes, bytes, ranks",
        module="mindbatch.tasks.inspect",
        verbose_key="verbose",
        examples=(
            "mindbatch inspect FOLDER",
            "mindbatch inspect model.ckpt filter='*.weight' digests=true format=json",
            "mindbatch inspect strategy/ckpt_strategy_rank_0.ckpt",
        ),
    ),
    Task(
        name="rank-table",
        summary="write the rank table of one server or several, check tables, or merge them",
        module="mindbatch.tasks.rank_table",
        verbose_key="verbose",
        examples=(
            "mindbatch rank-table devices='[0,8)'",
            "mindbatch rank-table merge server1.json server2.json output.file=cluster.json",
            "mindbatch rank-table check cluster.json num_ranks=16",
        ),
    ),
    Task(
        name="doctor",
        summary="show what was found: versions, devices, kernels, compiler, memory",
        module="mindbatch.tasks.doctor",
        verbose_key="verbose",
        examples=("mindbatch doctor", "mindbatch doctor format=json"),
    ),
)

TASKS: dict[str, Task] = {task.name: task for task in _ALL}
