"""A predict YAML as a configuration file for --config, with comments on where values come from."""

import json
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf

from mindbatch.config.composition import assign
from mindbatch.config.faults import FaultLog, shown
from mindbatch.config.model_task import ModelTaskConfig
from mindbatch.config.predict_yaml.apply import Applied, apply_table
from mindbatch.config.schema import schema_keys
from mindbatch.config.settings import Assignment
from mindbatch.screen_text import printable

_ANY_LENGTH = 1 << 20


def migrated(path: Path) -> Applied:
    """What the predict YAML `path` is for every task that runs a model; whether folders exist is not asked.

    Raises ConfigError with every fault in it.
    """
    keys = schema_keys(ModelTaskConfig)
    applied = apply_table(path, keys)
    log = FaultLog()
    for line in applied.faults:
        log.add(line)
    settings = [*applied.settings.values()]
    assign(OmegaConf.structured(ModelTaskConfig), settings, keys, log)
    refused = (
        (setting, keys.keys[setting.key].fault(setting.value)) for setting in settings if not log.lines
    )
    for setting, fault in refused:
        if fault:
            log.add(f"{setting.source}{setting.key}={shown(setting.value)}: {fault}")
    log.raise_if_any()
    return applied


def config_text(applied: Applied) -> str:
    """The configuration file: a line for each key, with the YAML's own name; then what has no effect."""
    lines = [f"# From {printable(applied.path.name)}, a predict YAML of MindFormers."]
    for section in dict.fromkeys(name.partition(".")[0] for name in applied.settings):
        lines.append(f"{section}:")
        own = [setting for name, setting in applied.settings.items() if name.startswith(f"{section}.")]
        lines += [_line(setting, applied.set_by.get(setting.key)) for setting in own]
    if applied.unused:
        lines.append("# Without effect here:")
        lines += [f"# - {', '.join(keys)}: {why}" for why, keys in applied.unused.items()]
    return "\n".join([*lines, ""])


def _line(setting: Assignment, name: str | None) -> str:
    comment = f"  # {name}" if name else ""
    return f"  {setting.key.partition('.')[2]}: {_written(setting.value)}{comment}"


def _written(value: Any) -> str:
    """The value on one line of YAML."""
    if isinstance(value, str):
        return json.dumps(value)
    text = yaml.safe_dump(value, default_flow_style=True, width=_ANY_LENGTH)
    return text.removesuffix("\n").removesuffix("\n...")
