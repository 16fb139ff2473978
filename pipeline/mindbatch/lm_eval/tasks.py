"""Tasks of lm-evaluation-harness: found and read, and a model's scores on them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from lm_eval import simple_evaluate
from lm_eval.tasks import TaskManager

from mindbatch.io.errors import ConfigError
from mindbatch.io.fault_lines import did_you_mean, shown
from mindbatch.lm_eval.model import MindBatchLM

BOOTSTRAP = 1000
"""Resamples for the standard errors that have no formula."""


@dataclass(frozen=True)
class HarnessTasks:
    """Tasks with their data. digest: of what is asked and how, and of the data."""

    names: Sequence[str]
    manager: TaskManager
    digest: str


def read_tasks(names: Sequence[str], include_path: Path | None) -> HarnessTasks:
    """Reads tasks and their data: those of a folder, or the harness's own where there is none.

    Raises:
        ConfigError: a task that there is not, or whose files or data cannot be read.
    """
    manager = TaskManager(include_path=include_path, include_defaults=include_path is None)
    unknown = [name for name in names if name not in manager.all_tasks]
    if unknown:
        where = f"in {include_path}" if include_path else "in lm-evaluation-harness"
        known = [name for name in manager.all_tasks if name]
        raise ConfigError(
            [
                f"harness.tasks: {shown(task)}: no such task {where}{did_you_mean(task, known)}"
                for task in unknown
            ]
        )
    try:
        loaded = manager.load([*names])["tasks"]
    except Exception as error:  # whatever a task's own code and the reader of its data may raise
        raise ConfigError(f"harness.tasks: cannot be read: {type(error).__name__}: {error}") from error
    digest = sha256()
    for name in sorted(loaded):
        task = loaded[name]
        digest.update(_bytes([name, task.dump_config()]))
        for split, docs in sorted((task.dataset or {}).items()):
            digest.update(_bytes([split]))
            for doc in docs:
                digest.update(_bytes(doc))
    return HarnessTasks(names, manager, digest.hexdigest())


def evaluated(
    model: MindBatchLM,
    tasks: HarnessTasks,
    *,
    num_fewshot: int | None,
    limit: int | None,
    apply_chat_template: bool,
) -> dict[str, Any]:
    """Runs the harness and returns what it found as plain JSON: `results`, `configs`, `samples` and the rest.

    Raises:
        ConfigError, PromptError: as from the model.
    """
    results = simple_evaluate(
        model,
        tasks=[*tasks.names],
        task_manager=tasks.manager,
        num_fewshot=num_fewshot,
        limit=limit,
        apply_chat_template=apply_chat_template,
        bootstrap_iters=BOOTSTRAP,
    )
    plain: dict[str, Any] = json.loads(_bytes(results))
    return plain


def scores_of(results: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Selects the scores of each task and group, by the names that the harness gives them: `acc,none`."""
    both = {**results.get("results", {}), **results.get("groups", {})}
    return {
        name: {metric: value for metric, value in scores.items() if "," in metric}
        for name, scores in both.items()
    }


def _bytes(value: Any) -> bytes:
    """Encodes as JSON; what has no form there as its text."""
    return json.dumps(value, default=_plain, sort_keys=True, ensure_ascii=False).encode()


def _plain(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else str(value)
