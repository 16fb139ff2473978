"""Composes the configuration of a task: merges its layers, validates them once, and completes the result."""

import dataclasses
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, get_type_hints

from mindbatch.config import paths
from mindbatch.config.error_log import ErrorLog
from mindbatch.config.hydra_tree import OptionContents
from mindbatch.config.options import Choice, OptionFiles
from mindbatch.config.saved import WrittenSettings, read_saved
from mindbatch.config.schema import SchemaKeys, Task, TaskConfig, schema_keys, value_at
from mindbatch.config.settings import (
    PREDICT_YAML,
    Assignment,
    Layer,
    LayerReader,
    Listed,
    read_command_line,
    values_of,
)
from mindbatch.config.validation import Assignments, Validator, written_values
from mindbatch.io.errors import ConfigError

if TYPE_CHECKING:
    from mindbatch.config.model_task import ModelTaskConfig

MODEL_DEFAULTS = "model_defaults"
"""The option of the group `decoding` that uses the parameters recommended by the model."""

_WITH_LINE_BREAKS = {
    "decoding.stop",
    "prompts",
    "system",
    "data.system",
    "data.template",
    "task.target_prefix",
}
"""Keys whose texts often have line breaks."""
_BACKSLASHED = re.compile(r"\\[nt](?![a-z])")
_TEMPLATE_CODE = re.compile(r"\{[{%].*?[%}]\}", re.DOTALL)


def compose_task(
    task: Task,
    overrides: list[str],
    config_file: Path | None = None,
    config_dir: Path | None = None,
    config_name: str | None = None,
) -> "Composition":
    """Composes `task` from its shipped file, --config file and overrides, with the options of --config-dir.

    config_name: a primary configuration of --config-dir instead of the task's own.
    A task that continues a run starts from the saved configuration; ConfigError if there is none.
    If a task takes a list of options, values beside the list apply to each of them.
    Errors go to the log of the composition.
    """
    log, schema = ErrorLog(), task.schema
    keys = schema_keys(schema)
    options = OptionFiles(paths.configs_folder(), config_dir)
    options.check_folder(log)
    reader = LayerReader(keys, options.groups, log, schema.listed_group)
    validator = Validator(keys, options.groups, log)
    layers = [reader.read_file(config_file)] if config_file else []
    layers.append(read_command_line([*task.implied, *overrides], schema, reader, log))
    values = values_of(layers)
    is_continued = schema.continues_run or values.get(schema.continuing_key) in (True,)
    if is_continued:
        layers.insert(0, read_saved(values, reader, log))
        validator.typed(_laid(item for layer in layers for item in layer.assignments), resolves=False)
        log.raise_if_any()  # without what was saved everything else would look like an error, too
    for layer in layers:
        layer.choices = [item for item in layer.choices if not item.option or options.exists(item, log)]

    contents = OptionContents(task.primary, options, reader, log)
    base = contents.composed(
        config_name or task.primary, [item for layer in layers for item in layer.choices]
    )
    predicted = _predict_layer(layers, base, contents, schema, is_continued)
    layers.insert(0, predicted.layer)
    own_list = tuple(map(Listed, schema.listed_options))
    listing = next((layer.listing for layer in layers[::-1] if layer.listing), own_list)
    variants = {}
    for entry in listing:
        choice = Choice(schema.listed_group, entry.option, "", entry.source)
        if not entry.option or options.exists(choice, log):
            below = [*base, *contents.of(choice)]
            variants[entry.name] = _laid([*below, *contents.in_order(layers), *entry.values])
    return Composition(
        schema=schema,
        keys=keys,
        settings=_laid([*base, *contents.in_order(layers)]),
        validator=validator,
        log=log,
        listing=listing,
        variants=variants,
        set_keys=frozenset(values_of(layers)),
        predicted=predicted,
        decoding=contents.chosen_decoding,
        hydra_yaml=contents.hydra_yaml,
    )


def _laid(assignments: Iterable[Assignment]) -> Assignments:
    """Returns the last assignment for each key, except the predict YAML, which has become settings."""
    settings: Assignments = {}
    for item in assignments:
        if item.key != PREDICT_YAML:
            settings.pop(item.key, None)  # so that the order is that of the assignments that remain
            settings[item.key] = item
    return settings


@dataclass(frozen=True)
class PredictLayer:
    """The settings of a predict YAML, if any, with notes for a run and details for `--print-config`."""

    layer: Layer = field(default_factory=Layer)
    notes: tuple[str, ...] = ()
    details: tuple[str, ...] = ()


def _predict_layer(
    layers: list[Layer],
    base: list[Assignment],
    contents: OptionContents,
    schema: type[TaskConfig],
    is_continued: bool,
) -> PredictLayer:
    written = values_of([Layer(base), *layers]).get(PREDICT_YAML)
    if written is None:
        return PredictLayer()
    log = contents.log
    if is_continued:
        why = "the run that is continued holds what came of its predict YAML; remove it"
        log.add(f"{PREDICT_YAML}: {why}")
        return PredictLayer()
    from mindbatch.config.predict_yaml.apply import predict_layer  # the table: most runs have no such file

    above = {item.key: item.value for layer in layers for item in contents.with_options(layer)}
    strategy = _strategy(layers, schema)
    settings, notes, details = predict_layer(written, above, strategy, contents.reader.keys, log)
    return PredictLayer(Layer(settings), tuple(notes), tuple(details))


def _strategy(layers: list[Layer], schema: type[TaskConfig]) -> str:
    """Names the option of `decoding` that the user chose; empty if there is none."""
    if schema.listed_group == "decoding":
        return "the list of strategies"
    options = [item.option for layer in layers for item in layer.choices if item.group == "decoding"]
    return f"decoding={options[-1]}" if options else ""


@dataclass
class Composition:
    """A composed configuration that is not validated yet.

    decoding: the chosen option of the group `decoding`; None if it is the task's default.
    hydra_yaml: returns Hydra's own node for it as YAML.
    variants: the settings with each listed option, by its name; `settings` have none of these options.
    """

    schema: type[TaskConfig]
    keys: SchemaKeys
    settings: Assignments
    validator: Validator
    log: ErrorLog
    listing: tuple[Listed, ...]
    variants: dict[str, Assignments]
    set_keys: frozenset[str]
    predicted: PredictLayer
    decoding: str | None
    hydra_yaml: Callable[[], str]

    def check(self) -> None:
        """Validates all values without references. Raises ConfigError with every error."""
        for settings in (self.settings, *self.variants.values()):
            self.validator.typed(settings, resolves=False)
        self.log.raise_if_any()

    def value(self, name: str) -> Any:
        """Returns the value of a key, with its references resolved."""
        return self.validator.typed(self.settings)[name]

    @property
    def unresolved_yaml(self) -> str:
        """The configuration as YAML. Each ${...} is kept, because its value may be a secret."""
        return self._written().as_yaml()

    def finish(self) -> TaskConfig:
        """Returns the typed, validated configuration. Raises ConfigError with every error."""
        config = self._typed(self.settings)
        idle = [*self._drop_idle(config)]
        config = self._typed(self.settings) if idle else config
        config.notes = (*self.predicted.notes, *idle, *self._escape_notes(config))
        config.variants = {name: self._section(settings) for name, settings in self.variants.items()}
        self.log.add_consequences(config.resolve_paths())
        if config.runs_model:
            self._fetch_models(cast("ModelTaskConfig", config))
            self._ask_model(cast("ModelTaskConfig", config))
            cast("ModelTaskConfig", config).draw_seed()
        self.log.add_consequences(config.all_errors(self.keys))
        self.log.raise_if_any()
        config.written = self._written()
        return config

    def _written(self) -> WrittenSettings:
        values = written_values(self.settings, self.keys)
        return WrittenSettings(self.schema, values, Path.cwd(), self.set_keys, self.listing)

    def _typed(self, settings: Assignments) -> TaskConfig:
        config: TaskConfig = _built(self.schema, self.validator.typed(settings))
        self.log.sources = {name: item.source for name, item in settings.items() if item.source}
        return config

    def _section(self, settings: Assignments) -> Any:
        """Returns the section of a variant, which replaces the configuration's own."""
        return getattr(self._typed(settings), self.schema.listed_group or "decoding")

    def _drop_idle(self, config: TaskConfig) -> Iterator[str]:
        """Removes settings of a predict YAML without effect in this task; yields a note for each."""
        for item in self.predicted.layer.assignments:
            line = config.need_error(self.keys.keys[item.key], self.keys)
            if line is not None and self.settings[item.key].source == item.source:
                del self.settings[item.key]
                yield line

    def _escape_notes(self, config: TaskConfig) -> Iterator[str]:
        """Yields notes on texts with \\n or \\t, where a line break or a tab was most likely meant."""
        for name in sorted({*self.set_keys} & _WITH_LINE_BREAKS & self.keys.keys.keys()):
            value = value_at(config, name)
            texts = value if isinstance(value, list | tuple) else [value]
            plain = [_TEMPLATE_CODE.sub("", text) for text in texts if isinstance(text, str)]
            if escape := next(filter(None, map(_BACKSLASHED.search, plain)), None):
                kind = "line break" if escape[0] == r"\n" else "tab"
                is_text = self.keys.keys[name].type is str
                way = f"$'...{escape[0]}...'" if is_text else f"""'["...{escape[0]}..."]'"""
                letter = escape[0][1]
                yield f"{name}: {escape[0]} is a backslash and {letter} there; a {kind} is {name}={way}"

    def _fetch_models(self, config: "ModelTaskConfig") -> None:
        """Fetches models that are given by a name on the hub, if there are no other errors."""
        from mindbatch.config.hub_models import fetch_models, unfetched

        if unfetched(config.model):
            self.log.add_consequences(config.all_errors(self.keys))
            self.log.raise_if_any()
            self.log.add_consequences(fetch_models(config.model))

    def _ask_model(self, config: "ModelTaskConfig") -> None:
        """Adds the recommended parameters of the model, if requested, for keys that the user did not set."""
        if self.decoding == MODEL_DEFAULTS:
            config.decoding = self._recommended(config, self.settings, config.decoding, self.set_keys)
        elif self.listing:
            for entry in self.listing:
                if entry.option == MODEL_DEFAULTS and entry.name in self.variants:
                    keys = self.set_keys | {item.key for item in entry.values}
                    settings, decoding = self.variants[entry.name], config.variants[entry.name]
                    config.variants[entry.name] = self._recommended(config, settings, decoding, keys)
        elif self.decoding is None and "decoding.do_sample" not in self.set_keys:
            config.notes += _advice_for(config)

    def _recommended(
        self, config: "ModelTaskConfig", settings: Assignments, decoding: Any, set_keys: Collection[str]
    ) -> Any:
        """Returns the section `decoding` of `settings` with the model's values for keys that were not set."""
        from mindbatch.decoding.model_defaults import model_defaults
        from mindbatch.decoding.params import DecodingParams

        folder = config.model.checkpoint_name_or_path
        if folder is None or self.log.lines:
            return decoding
        values = dataclasses.asdict(decoding).items()
        own = {name: value for name, value in values if f"decoding.{name}" in set_keys}
        try:
            defaults, notes = model_defaults(Path(folder), own, DecodingParams)
        except ConfigError as error:
            self.log.add(f"decoding={MODEL_DEFAULTS}: {error}", "decoding")
            return decoding
        config.notes += tuple(line for line in notes if line not in config.notes)
        recommended = (Assignment(f"decoding.{name}", value) for name, value in defaults.items())
        settings |= {item.key: item for item in recommended}
        return self._section(settings)


def _built(schema: type, values: Mapping[str, Any], prefix: str = "") -> Any:
    """Makes the dataclass `schema` of values by full key."""
    hints = get_type_hints(schema)
    arguments = {}
    for entry in dataclasses.fields(schema):
        name = prefix + entry.name
        if dataclasses.is_dataclass(hints[entry.name]):
            arguments[entry.name] = _built(hints[entry.name], values, f"{name}.")
        elif name in values:
            arguments[entry.name] = values[name]
    return schema(**arguments)


def _advice_for(config: "ModelTaskConfig") -> tuple[str, ...]:
    """Returns a note if the run decodes greedily by default and the model recommends sampling."""
    folder = config.model.checkpoint_name_or_path
    if folder is None or not config.advises_sampling or config.is_continued:
        return ()
    from mindbatch.decoding.model_defaults import sampling_advice
    from mindbatch.decoding.params import DecodingParams

    line = sampling_advice(Path(folder), dataclasses.asdict(config.decoding), DecodingParams)
    return () if line is None else (line,)
