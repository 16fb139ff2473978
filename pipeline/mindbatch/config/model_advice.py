"""What a model's generation_config.json adds to a configuration: values where asked for, else a note."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from pathlib import Path

from mindbatch.config.faults import FaultLog
from mindbatch.config.model_task import ModelTaskConfig
from mindbatch.config.settings import Assignment
from mindbatch.errors import ConfigError

MODEL_DEFAULTS = "model_defaults"
"""The option of the group `decoding` that takes what the model recommends."""


def defaults_for(
    config: ModelTaskConfig, given: Collection[str], log: FaultLog
) -> tuple[list[Assignment], tuple[str, ...]]:
    """Values for the keys of `decoding` that were not given, and lines on what was left out."""
    from mindbatch.decoding.model_defaults import model_defaults  # NumPy: not needed by most configurations

    folder = config.model.checkpoint_name_or_path
    if folder is None or log.lines:
        return [], ()
    own = {
        name: value
        for name, value in dataclasses.asdict(config.decoding).items()
        if f"decoding.{name}" in given
    }
    try:
        values, notes = model_defaults(Path(folder), own)
    except ConfigError as error:
        log.add(f"decoding={MODEL_DEFAULTS}: {error}", "decoding")
        return [], ()
    return [Assignment(f"decoding.{name}", value, "") for name, value in values.items()], tuple(notes)


def advice_for(config: ModelTaskConfig) -> tuple[str, ...]:
    """A line if the run is plainly greedy and the model recommends sampling."""
    folder = config.model.checkpoint_name_or_path
    if folder is None or not config.advises_sampling:
        return ()
    from mindbatch.decoding.model_defaults import sampling_advice

    line = sampling_advice(Path(folder), dataclasses.asdict(config.decoding))
    return () if line is None else (line,)
