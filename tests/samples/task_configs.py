"""Configurations of tasks, and the faults of those that are refused."""

from pathlib import Path
from typing import Any

import pytest

from mindbatch.config.compose import compose_task
from mindbatch.io.errors import ConfigError
from mindbatch.tasks.registry import TASKS


def config_of(task: str, *overrides: str, file: Path | None = None, folder: Path | None = None) -> Any:
    """What the task is given: a configuration of its schema."""
    config = compose_task(TASKS[task], list(overrides), file, folder).finish()
    assert isinstance(config, TASKS[task].schema)
    return config


def faults_of_task(task: str, *overrides: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        config_of(task, *overrides)
    return list(caught.value.lines)


def faults(*overrides: str) -> tuple[str, ...]:
    """Those of `generate`."""
    return tuple(faults_of_task("generate", *overrides))
