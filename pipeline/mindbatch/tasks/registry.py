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
            "mindbatch generate model.checkpoint_name_or_path=FOLDER decoding=nucleus interactive=true",
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
