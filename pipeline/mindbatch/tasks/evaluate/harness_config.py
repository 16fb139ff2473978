"""The keys of `mindbatch evaluate` for tasks of lm-evaluation-harness."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from mindbatch.config.schema import option
from mindbatch.io.fault_lines import shown


@dataclass
class HarnessConfig:
    """Tasks of lm-evaluation-harness in place of `task` and `data`; an extra."""

    tasks: Any = option(None, "names of tasks, groups or tags", accepts="list of names, or null")
    include_path: str | None = option(
        None,
        "folder of tasks of your own, whose code is run; null: those of the harness, with data from the hub",
        is_path=True,
    )
    num_fewshot: int | None = option(None, "solved examples; null: as the task says", minimum=0)
    limit: int | None = option(None, "most questions of each task; null: all", minimum=1)
    apply_chat_template: bool = option(False, "ask in the form of a chat, the examples as turns of it")


def harness_faults(harness: HarnessConfig) -> Iterator[str]:
    """Yields validation errors of the `harness` keys by themselves."""
    tasks = harness.tasks
    if tasks is None:
        for name in ("include_path", "num_fewshot", "limit", "apply_chat_template"):
            if getattr(harness, name) not in (None, False):
                yield f"harness.{name}: has no effect without harness.tasks; give them, or remove it"
    elif not isinstance(tasks, list | tuple) or not tasks or not all(isinstance(e, str) and e for e in tasks):
        yield f"harness.tasks={shown(tasks)}: must be a list of names, like [my_task]"
