"""Composition of a task's configuration: option files by Hydra, --config, and the command line's values.

Everything is laid on the typed tree of the task's schema, key by key, so that every error is found.
"""

import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from mindbatch.config import paths
from mindbatch.config.composition import Composition, assign
from mindbatch.config.error_log import ErrorLog
from mindbatch.config.hydra_tree import HydraTree, take_errors
from mindbatch.config.options import OptionFiles
from mindbatch.config.overrides import read_command_line
from mindbatch.config.schema import Task, TaskConfig, schema_keys
from mindbatch.config.settings import (
    PREDICT_YAML,
    Assignment,
    Choice,
    Layer,
    Listed,
    SettingReader,
    read_saved,
    values_of,
)
from mindbatch.config.yaml_file import read_mapping
from mindbatch.io.errors import ConfigError

_DEFAULTS: dict[type[TaskConfig], bytes] = {}


def compose_task(
    task: Task,
    overrides: list[str],
    config_file: Path | None = None,
    config_dir: Path | None = None,
    config_name: str | None = None,
) -> Composition:
    """Composes `task` from its shipped file, --config file and overrides, with the options of --config-dir.

    config_name: another primary configuration than the task's own, of --config-dir.
    A task that continues a run begins with the configuration saved there, and without one raises ConfigError.
    Where a task takes a list of options, what is given beside the list goes for each of them.
    Errors are noted in the composition's log; what is wrong is left out of its tree.
    """
    log, schema = ErrorLog(), task.schema
    keys = schema_keys(schema)
    options = OptionFiles(paths.configs_folder(), config_dir)
    options.check_folder(log)
    reader = SettingReader(keys, options.groups, log, schema.listed_group)
    layers = [reader.read_file(config_file)] if config_file else []
    layers.append(read_command_line([*task.implied, *overrides], schema, reader, log))
    values = values_of(layers)
    is_continued = schema.continues_run or values.get(schema.continuing_key) in (True,)
    if is_continued:
        layers.insert(0, read_saved(values, reader, log))
    for layer in layers:
        layer.choices = [item for item in layer.choices if not item.option or options.exists(item, log)]

    files = _OptionContents(task, HydraTree(options), reader, log)
    base = files.of_all(config_name or task.primary, [choice for layer in layers for choice in layer.choices])
    notes, details = files.put_predict_yaml_below(layers, base, is_continued)
    tree = _defaults(schema)
    files.assign(tree, base)
    variants = {}
    own_list = tuple(map(Listed, schema.listed_options))
    listing = next((layer.listing for layer in layers[::-1] if layer.listing), own_list)
    for entry in listing:
        group, option = schema.listed_group, entry.option
        choice = Choice(group, option, f"{group}={option}", entry.source)
        if not option or options.exists(choice, log):
            variant = variants[entry.name] = tree.copy()
            files.assign(variant, files.of(choice))
            files.lay(variant, layers)
            files.assign(variant, entry.values)
    files.lay(tree, layers)
    set_keys = frozenset(values_of(layers))
    return Composition(
        schema,
        keys,
        tree,
        log,
        listing,
        variants,
        set_keys,
        files.chosen_decoding,
        notes,
        details,
        files.hydra_yaml,
    )


@dataclass
class _OptionContents:
    """Assignments that the chosen options make, each naming its file; and the layers laid upon them."""

    task: Task
    hydra: HydraTree
    reader: SettingReader
    log: ErrorLog
    chosen_decoding: str | None = None
    hydra_yaml: Callable[[], str] = str
    """Gives Hydra's own node for the configuration that was composed."""

    _of_choice: dict[Choice, list[Assignment]] = field(default_factory=dict)

    def of_all(self, name: str, choices: list[Choice]) -> list[Assignment]:
        """Assignments of the primary configuration `name`, with the last choice for each group."""
        last = {choice.override.partition("=")[0]: choice for choice in choices}
        overrides = tuple(choice.override for choice in last.values())
        groups = [choice.group for choice in last.values()]
        self.hydra_yaml = partial(self.hydra.hydra_yaml, name, overrides)
        try:
            content, options = _composed(self.hydra, name, overrides)
        except ConfigError as error:
            for line in error.lines:
                self.log.add(line, *groups)
            content, options = _composed(self.hydra, self.task.primary, ())
        for line in take_errors():
            self.log.add(line, *groups)
        decoding = options.get("decoding")
        if "decoding" in last or decoding != _own_options(self.task).get("decoding"):
            self.chosen_decoding = decoding
        return self._assignments(content, options)

    def of(self, choice: Choice) -> list[Assignment]:
        if choice not in self._of_choice:
            options = {choice.group: choice.option}
            content = self.hydra.content_of(choice.group, choice.option) if choice.option else {}
            self._of_choice[choice] = self._assignments(content, options)
        return self._of_choice[choice]

    def _assignments(self, content: Mapping[str, Any], options: Mapping[str, str]) -> list[Assignment]:
        return self.reader.read_all(content, lambda key: self.hydra.source(key, options)).assignments

    def with_options(self, layer: Layer) -> Iterator[Assignment]:
        """The assignments of a layer in their order of application: first those of its options."""
        for choice in layer.choices:
            yield from self.of(choice)
        yield from layer.assignments

    def assign(self, tree: DictConfig, assignments: Iterable[Assignment]) -> None:
        """Assigns all but the predict YAML: a configuration holds what came of it."""
        kept = (setting for setting in assignments if setting.key != PREDICT_YAML)
        assign(tree, kept, self.reader.schema, self.log)

    def lay(self, tree: DictConfig, layers: Iterable[Layer]) -> None:
        """Lays the layers, one after the other, upon `tree`, which has what all options set.

        What an option sets goes before the values of the layers below its own, as values of its layer do.
        """
        for number, layer in enumerate(filter(None, layers)):
            self.assign(tree, self.with_options(layer) if number else layer.assignments)

    def put_predict_yaml_below(
        self, layers: list[Layer], base: list[Assignment], is_continued: bool
    ) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Puts the settings of a predict YAML, if one is given, below all layers; its notes and details."""
        written = values_of([Layer(base), *layers]).get(PREDICT_YAML)
        if written is None:
            return (), ()
        if is_continued:
            why = "the run that is continued holds what came of its predict YAML; remove it"
            self.log.add(f"{PREDICT_YAML}: {why}")
            return (), ()
        from mindbatch.config.predict_yaml.apply import (
            predict_layer,  # the table: most runs have no such file
        )

        above = {setting.key: setting.value for layer in layers for setting in self.with_options(layer)}
        strategy = _strategy(layers, self.task.schema)
        settings, notes, details = predict_layer(written, above, strategy, self.reader.schema, self.log)
        layers.insert(0, Layer(settings))
        return tuple(notes), tuple(details)


def _composed(
    hydra: HydraTree, name: str, overrides: tuple[str, ...]
) -> tuple[dict[str, Any], dict[str, str]]:
    """A function of its own, so that tests compose what they share once."""
    return hydra.compose(name, overrides)


def _own_options(task: Task) -> dict[str, str]:
    """The options that the task's own file names, by group."""
    defaults = read_mapping(paths.configs_folder() / f"{task.primary}.yaml").get("defaults", [])
    return {group: option for entry in defaults if isinstance(entry, dict) for group, option in entry.items()}


def _strategy(layers: list[Layer], schema: type[TaskConfig]) -> str:
    """Names the given setting that says how tokens are chosen; empty where none does."""
    if schema.listed_group == "decoding":
        return "the list of strategies"
    options = [item.option for layer in layers for item in layer.choices if item.group == "decoding"]
    return f"decoding={options[-1]}" if options else ""


def _defaults(schema: type[TaskConfig]) -> DictConfig:
    """The tree of a schema's defaults; pickle brings it back in a thirtieth of the time of making it anew."""
    if schema not in _DEFAULTS:
        _DEFAULTS[schema] = pickle.dumps(OmegaConf.structured(schema))
    tree: DictConfig = pickle.loads(_DEFAULTS[schema])
    return tree
