"""Composition of a task's configuration: its own file, then --config, then the command line."""

import dataclasses
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig, OmegaConf

from mindbatch.config import paths
from mindbatch.config.continued import read_saved
from mindbatch.config.faults import FaultLog, shown
from mindbatch.config.model_task import ModelTaskConfig
from mindbatch.config.options import OptionFiles, OptionReader
from mindbatch.config.overrides import read_overrides, read_words
from mindbatch.config.predict_yaml.key import PREDICT_YAML, take_out
from mindbatch.config.schema import SchemaKeys, TaskConfig, schema_keys, value_at
from mindbatch.config.settings import Assignment, Choice, Listing, Setting, SettingReader
from mindbatch.config.tree import assign, build, portable_yaml, resolved, settings_of, yaml_of
from mindbatch.errors import ConfigError

HYDRA_VERSION_BASE = "1.3"

MODEL_DEFAULTS = "model_defaults"
"""The option of the group `decoding` that takes what the model recommends."""


@dataclass
class Composition:
    """A composed configuration, not yet resolved or validated.

    decoding: the chosen option of that group; None where the task's own holds.
    notes: what the user should be told, whether the task is begun or the configuration is shown.
    variants: for a task that takes a list of options, the tree with each; `tree` has none of their values.
    """

    schema: type[TaskConfig]
    keys: SchemaKeys
    tree: DictConfig
    log: FaultLog
    listing: Listing | None = None
    variants: dict[str, DictConfig] = field(default_factory=dict)
    given: frozenset[str] = frozenset()
    decoding: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def unresolved_yaml(self) -> str:
        """The configuration as YAML, ${...} as written: resolved, it could hold secrets."""
        return yaml_of(self.tree, self.listing, self.given)

    def finish(self) -> TaskConfig:
        """The typed, validated configuration. Raises ConfigError with every fault found up to here."""
        config = self._build()
        config.notes = self.notes
        config.variants = {option: self._section(tree) for option, tree in self.variants.items()}
        self.log.add_consequences(config.settle_paths())
        if isinstance(config, ModelTaskConfig):
            self._ask_model(config)
        self.log.add_consequences(self._faults(config))
        self.log.raise_if_any()
        config.unresolved_yaml = portable_yaml(self.tree, config, self.keys, self.listing, self.given)
        config.resolved_settings = settings_of(self.tree, config, self.keys)
        return config

    def _build(self) -> TaskConfig:
        """The typed configuration, without the values of a predict YAML that it has no use for."""
        config = build(self.schema, resolved(self.tree, self.keys, self.log))
        unused: dict[str, list[str]] = {}
        for name in self.log.origins:
            reason = config.unused(name)
            if reason and value_at(config, name) != self.keys.keys[name].default:
                unused.setdefault(reason, []).append(name)
        if not unused:
            return config
        self.notes += tuple(f"{', '.join(names)}: {reason}" for reason, names in unused.items())
        defaults = [Assignment(name, self.keys.keys[name].default, "") for name in chain(*unused.values())]
        assign(self.tree, defaults, self.keys, self.log)
        return build(self.schema, resolved(self.tree, self.keys, self.log))

    def _faults(self, config: TaskConfig) -> Iterator[str]:
        """Every fault in the values of `config`, whose paths are settled; types were checked when given."""
        for key in self.keys.keys.values():
            value = value_at(config, key.name)
            if fault := key.fault(value):
                yield f"{key.name}={shown(value)}: {fault}"
        yield from config.own_faults(self.keys)

    def _ask_model(self, config: ModelTaskConfig) -> None:
        """Puts what the model recommends below what was given, where that was asked for."""
        tree = self.variants.get(MODEL_DEFAULTS)
        if self.decoding == MODEL_DEFAULTS:
            tree = self.tree
        if tree is not None:
            values, notes = _defaults_for(config, self.given, self.log)
            config.notes += notes
            assign(tree, values, self.keys, self.log)
            if self.variants:
                config.variants[MODEL_DEFAULTS] = self._section(tree)
            else:
                config.decoding = self._section(tree)
        elif self.listing is None and self.decoding is None and "decoding.do_sample" not in self.given:
            config.notes += _advice_for(config)

    def _section(self, tree: DictConfig) -> Any:
        """What a variant has in place of the section of the listed group."""
        group = self.schema.listed_group or "decoding"
        return getattr(build(self.schema, resolved(tree, self.keys, self.log)), group)


class Composed(Protocol):
    """What is known here of a task: its name, which its shipped file has too, and the schema of its keys."""

    @property
    def name(self) -> str: ...

    @property
    def schema(self) -> type[TaskConfig]: ...


def compose_task(
    task: Composed,
    overrides: list[str],
    config_file: Path | None = None,
    config_dir: Path | None = None,
) -> Composition:
    """Composes `task` from its shipped file, --config file and overrides, with the options of --config-dir.

    A task that continues a run begins with the configuration saved there, and without one raises ConfigError.
    Where a task takes a list of options, what is given beside the list goes for each of them.
    Faults are noted in the composition's log; what is at fault is left out of its tree.
    """
    log, schema = FaultLog(), task.schema
    keys = schema_keys(schema)
    options = OptionFiles(paths.configs_folder(), config_dir)
    options.check_folder(log)
    reader = SettingReader(keys, options.groups, log, schema.listed_group)
    in_file = reader.read_file(config_file) if config_file else []
    words, tokens = read_words(overrides, schema, log)
    layers = [in_file, words + read_overrides(tokens, reader, log)]
    if schema.continues_run:
        layers.insert(0, read_saved([*chain(*layers)], reader, log))

    contents = _chosen_options([*chain(*layers)], schema, keys, options, log)
    notes = _lay_predict_yaml(layers, contents, schema, keys, log)
    tree = _compose_with_hydra(task, list(contents), options)
    listing = _last_listing([*chain(*layers)], schema)
    variants = {}
    for choice in listing.choices if listing else ():
        content = _chosen_options([choice], schema, keys, options, log)
        if content:
            variants[choice.option] = _laid(tree.copy(), [[choice], *layers], contents | content, keys, log)
    _laid(tree, layers, contents, keys, log)
    given = frozenset(setting.key for setting in _assignments([*chain(*layers)]))
    chosen = [choice.option for choice in contents if choice.group == "decoding"]
    decoding = chosen[-1] if chosen else None
    return Composition(schema, keys, tree, log, listing, variants, given, decoding, notes)


def _lay_predict_yaml(
    layers: list[list[Setting]],
    contents: dict[Choice, list[Assignment]],
    schema: type[TaskConfig],
    keys: SchemaKeys,
    log: FaultLog,
) -> tuple[str, ...]:
    """Puts the settings of a predict YAML, if one is given, below all layers; returns lines for the user."""
    written = take_out(contents.values(), layers)
    if written is None:
        return ()
    if schema.continues_run:
        log.add(f"{PREDICT_YAML}: the run that is continued holds what came of its predict YAML; remove it")
        return ()
    from mindbatch.config.predict_yaml.layer import predict_layer  # the table: most runs have no such file

    settings, notes = predict_layer(written, layers, contents, schema, keys, log)
    layers.insert(0, [*settings])
    layers.append([Assignment(PREDICT_YAML, None, "")])  # an option's file may have it, which Hydra reads
    return tuple(notes)


def _last_listing(settings: list[Setting], schema: type[TaskConfig]) -> Listing | None:
    """The list of options that counts; the schema's where none is given, None where the task takes none."""
    if not schema.listed_group:
        return None
    default = Listing(schema.listed_group, schema.listed_options, "")
    return [default, *(setting for setting in settings if isinstance(setting, Listing))][-1]


def _laid(
    tree: DictConfig,
    layers: Iterable[list[Setting]],
    contents: dict[Choice, list[Assignment]],
    keys: SchemaKeys,
    log: FaultLog,
) -> DictConfig:
    """`tree` with the layers laid upon it, one after the other."""
    for layer in layers:
        for choice in _choices(layer):  # what an option sets goes before the layers below, as plain values do
            assign(tree, contents.get(choice, []), keys, log)
        assign(tree, _assignments(layer), keys, log)
    return tree


def _chosen_options(
    settings: list[Setting],
    schema: type[TaskConfig],
    keys: SchemaKeys,
    options: OptionFiles,
    log: FaultLog,
) -> dict[Choice, list[Assignment]]:
    """The last choice for each group with what its option sets; options with a fault are left out."""
    last = {choice.group: choice for choice in _choices(settings) if options.exists(choice, log)}
    contents = {}
    for choice in last.values():
        trial = FaultLog()
        content = OptionReader(options, keys, trial).read(choice)
        assign(OmegaConf.structured(schema), content, keys, trial)
        log.merge(trial, choice.group)
        if not trial.lines:
            contents[choice] = content
    return contents


def _compose_with_hydra(task: Composed, choices: list[Choice], options: OptionFiles) -> DictConfig:
    """The tree of the task's file with the chosen options. Everything that is read was checked before."""
    store = ConfigStore.instance()
    store.store(name=f"{task.name}_schema", node=task.schema)
    overrides = [f"{choice.group}={choice.option}" for choice in choices]
    if options.added and options.added.is_dir():
        overrides.append(f"hydra.searchpath=[{_quoted(f'file://{options.added.resolve()}')}]")
    with initialize_config_dir(str(options.shipped), version_base=HYDRA_VERSION_BASE):
        return compose(task.name, overrides=overrides)


def _quoted(text: str) -> str:
    """`text` as a quoted value of Hydra's grammar."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _choices(settings: list[Setting]) -> list[Choice]:
    return [setting for setting in settings if isinstance(setting, Choice)]


def _assignments(settings: list[Setting]) -> list[Assignment]:
    return [setting for setting in settings if isinstance(setting, Assignment)]


def _defaults_for(
    config: ModelTaskConfig, given: Collection[str], log: FaultLog
) -> tuple[list[Assignment], tuple[str, ...]]:
    """Values for the keys of `decoding` that were not given, and lines on what was left out."""
    from mindbatch.decoding.model_defaults import model_defaults
    from mindbatch.decoding.params import DecodingParams

    folder = config.model.checkpoint_name_or_path
    if folder is None or log.lines:
        return [], ()
    own = {
        name: value
        for name, value in dataclasses.asdict(config.decoding).items()
        if f"decoding.{name}" in given
    }
    try:
        values, notes = model_defaults(Path(folder), own, DecodingParams)
    except ConfigError as error:
        log.add(f"decoding={MODEL_DEFAULTS}: {error}", "decoding")
        return [], ()
    return [Assignment(f"decoding.{name}", value, "") for name, value in values.items()], tuple(notes)


def _advice_for(config: ModelTaskConfig) -> tuple[str, ...]:
    """A line if the run is plainly greedy and the model recommends sampling."""
    folder = config.model.checkpoint_name_or_path
    if folder is None or not config.advises_sampling:
        return ()
    from mindbatch.decoding.sampling_advice import sampling_advice

    line = sampling_advice(Path(folder), dataclasses.asdict(config.decoding))
    return () if line is None else (line,)
