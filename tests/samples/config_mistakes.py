"""The faults of a configuration of `generate`."""

from pathlib import Path

import pytest

from mindbatch.config.compose import compose_task
from mindbatch.io.errors import ConfigError
from mindbatch.tasks.registry import TASKS


def faults(*overrides: str, config_file: Path | None = None) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        compose_task(TASKS["generate"], list(overrides), config_file).finish()
    return caught.value.faults
