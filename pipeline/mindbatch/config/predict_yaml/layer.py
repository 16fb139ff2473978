"""`model.mindformers_yaml`: a predict YAML as the lowest layer of a configuration."""

from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from mindbatch.config.continued import resolved_text
from mindbatch.config.faults import FaultLog, shown
from mindbatch.config.path_faults import LONGEST_SHOWN
from mindbatch.config.paths import resolve_path
from mindbatch.config.predict_yaml.apply import CHECKPOINT, apply_table
from mindbatch.config.schema import SchemaKeys, TaskConfig
from mindbatch.config.settings import PREDICT_YAML, Assignment, Choice, Setting
from mindbatch.io.errors import ConfigError

Contents = Mapping[Choice, list[Assignment]]


def predict_layer(
    written: object,
    layers: Sequence[list[Setting]],
    contents: Contents,
    schema: type[TaskConfig],
    keys: SchemaKeys,
    log: FaultLog,
) -> tuple[list[Assignment], list[str]]:
    """The settings of the predict YAML that `written` names, and a line for each reason why keys have none.

    layers, contents: what goes before the YAML, and what the chosen options in it set.
    Its faults go to `log`, and where each setting comes from.
    """
    strategy = _strategy([*chain(*layers)], schema)
    try:
        path = _path(written)
        applied = apply_table(path, keys, _values_above(layers, contents), strategy)
    except ConfigError as error:
        for line in error.faults:
            log.add(line, CHECKPOINT)
        return [], []
    for line in applied.faults:
        log.add(line, *applied.doubtful)
    settings = [*applied.settings.values()]
    log.origins |= {setting.key: setting.source for setting in settings}
    return settings, applied.notes


def _path(written: object) -> Path:
    try:
        return resolve_path(resolved_text(written, "a predict YAML of MindFormers"))
    except ValueError as error:
        raise ConfigError(f"{PREDICT_YAML}={shown(written, LONGEST_SHOWN)}: {error}") from error


def _values_above(layers: Sequence[list[Setting]], contents: Contents) -> dict[str, Any]:
    """The values that go before the YAML's, by key, the last of each."""
    settings = [setting for layer in layers for setting in _with_options(layer, contents)]
    return {setting.key: setting.value for setting in settings}


def _with_options(layer: list[Setting], contents: Contents) -> list[Assignment]:
    """The assignments of a layer in their order of application: first those of its options."""
    of_options = [contents.get(setting, []) for setting in layer if isinstance(setting, Choice)]
    return [*chain(*of_options), *(setting for setting in layer if isinstance(setting, Assignment))]


def _strategy(settings: list[Setting], schema: type[TaskConfig]) -> str:
    """Names the given setting that says how tokens are chosen; empty where none does."""
    if schema.listed_group == "decoding":
        return "the list of strategies"
    options = [item.option for item in settings if isinstance(item, Choice) and item.group == "decoding"]
    return f"decoding={options[-1]}" if options else ""
