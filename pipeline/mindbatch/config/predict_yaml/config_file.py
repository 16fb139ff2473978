"""A predict YAML as a configuration file for --config, with comments on where values come from."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf

from mindbatch.config.composition import assign
from mindbatch.config.faults import FaultLog, shown
from mindbatch.config.model_task import ModelTaskConfig
from mindbatch.config.predict_yaml.apply import Applied, apply_table
from mindbatch.config.schema import SchemaKeys, schema_keys
from mindbatch.config.settings import Assignment
from mindbatch.decoding.params import DecodingParams
from mindbatch.io.errors import ConfigError
from mindbatch.io.screen_text import printable

_ANY_LENGTH = 1 << 20


def migrated(path: Path) -> Applied:
    """Translates the predict YAML for every task that runs a model; whether folders exist is not asked.

    Raises ConfigError with every error in it.
    """
    keys = schema_keys(ModelTaskConfig)
    applied = apply_table(path, keys)
    log = FaultLog()
    for line in applied.faults:
        log.add(line)
    tree = OmegaConf.structured(ModelTaskConfig)
    assign(tree, applied.settings.values(), keys, log)
    log.origins = {name: setting.source for name, setting in applied.settings.items()}
    log.add_consequences(_faults({name: OmegaConf.select(tree, name) for name in applied.settings}, keys))
    log.raise_if_any()
    return applied


def _faults(values: dict[str, Any], keys: SchemaKeys) -> Iterator[str]:
    for name, value in values.items():
        if fault := keys.keys[name].fault(value):
            yield f"{name}={shown(value)}: {fault}"
    decoding = {
        name.partition(".")[2]: value for name, value in values.items() if name.startswith("decoding.")
    }
    try:
        DecodingParams(**{name: _plain(value) for name, value in decoding.items()})
    except ConfigError as error:
        yield from error.faults


def _plain(value: Any) -> Any:
    return OmegaConf.to_container(value) if OmegaConf.is_config(value) else value


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
    if isinstance(value, str):
        return json.dumps(value)
    text = yaml.safe_dump(value, default_flow_style=True, width=_ANY_LENGTH)
    return text.removesuffix("\n").removesuffix("\n...")
