"""A composed configuration: the tree of its values, what they resolve to, how it is kept beside outputs."""

import dataclasses
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, get_type_hints

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import InterpolationValidationError, MissingMandatoryValue, OmegaConfBaseException
from omegaconf.resolvers import oc

from mindbatch.config.error_log import ErrorLog, shown
from mindbatch.config.paths import SHIPPED, STANDARD_INPUT
from mindbatch.config.schema import Key, SchemaKeys, TaskConfig, value_at
from mindbatch.config.settings import Assignment, Listed
from mindbatch.io.errors import ConfigError
from mindbatch.io.screen_text import hide
from mindbatch.io.storage import Storage, write_whole

if TYPE_CHECKING:
    from mindbatch.config.model_task import ModelTaskConfig

MODEL_DEFAULTS = "model_defaults"
"""The option of the group `decoding` that takes what the model recommends."""


_ESCAPE = "${ begins a reference; write \\${ for the characters themselves"
_ENVIRONMENT = re.compile(r"\$\{oc\.env:\s*(\w+)\s*\}")


def _environment_value(name: str, *default: Any) -> Any:
    """OmegaConf's oc.env, whose values are hidden from then on."""
    value = oc.env(name, *default)
    if name in os.environ:
        hide(os.environ[name], f"${{oc.env:{name}}}")
    return value


OmegaConf.register_new_resolver("oc.env", _environment_value, replace=True)


_WITH_LINE_BREAKS = {
    "decoding.stop",
    "prompts",
    "system",
    "data.system",
    "data.template",
    "task.target_prefix",
}
"""Keys whose texts may well have some."""
_BACKSLASHED = re.compile(r"\\[nt](?![a-z])")
_TEMPLATE_CODE = re.compile(r"\{[{%].*?[%}]\}", re.DOTALL)


@dataclass
class Composition:
    """A composed configuration, not yet resolved or validated.

    decoding: the chosen option of that group; None where the task's own holds.
    hydra_yaml: gives Hydra's own node for it as YAML.
    notes: what the user should be told when the task is begun. details: when the configuration is shown.
    variants: for a task that takes a list of options, the tree with each; `tree` has none of their values.
    """

    schema: type[TaskConfig]
    keys: SchemaKeys
    tree: DictConfig
    log: ErrorLog
    listing: tuple[Listed, ...] = ()
    variants: dict[str, DictConfig] = field(default_factory=dict)
    set_keys: frozenset[str] = frozenset()
    decoding: str | None = None
    notes: tuple[str, ...] = ()
    details: tuple[str, ...] = ()
    hydra_yaml: Callable[[], str] = str

    @property
    def unresolved_yaml(self) -> str:
        """The configuration as YAML, ${...} as written: resolved, it could hold secrets."""
        return self._yaml({})

    def finish(self) -> TaskConfig:
        """The typed, validated configuration. Raises ConfigError with every error found up to here."""
        config = self._build()
        config.notes = (*self.notes, *self._escape_notes(config))
        config.variants = {option: self._section(tree) for option, tree in self.variants.items()}
        self.log.add_consequences(config.settle_paths())
        if config.runs_model:
            self._fetch_models(cast("ModelTaskConfig", config))
            self._ask_model(cast("ModelTaskConfig", config))
            cast("ModelTaskConfig", config).draw_seed()
        self._check(config)
        self.log.raise_if_any()
        config.unresolved_yaml = self._portable_yaml(config)
        config.resolved_settings = self._settings(config)
        return config

    def _escape_notes(self, config: TaskConfig) -> Iterator[str]:
        """Lines on texts in which a line break or a tab was most likely meant."""
        for name in sorted({*self.set_keys} & _WITH_LINE_BREAKS):
            value = value_at(config, name)
            texts = value if isinstance(value, list | tuple) else [value]
            plain = [_TEMPLATE_CODE.sub("", text) for text in texts if isinstance(text, str)]
            if escape := next(filter(None, map(_BACKSLASHED.search, plain)), None):
                kind = "line break" if escape[0] == r"\n" else "tab"
                is_text = self.keys.keys[name].type is str
                way = f"$'...{escape[0]}...'" if is_text else f"""'["...{escape[0]}..."]'"""
                letter = escape[0][1]
                yield f"{name}: {escape[0]} is a backslash and {letter} there; a {kind} is {name}={way}"

    def _build(self) -> TaskConfig:
        """The typed configuration, without the values of a predict YAML that it has no use for."""
        config = self._typed(self.tree)
        unused: dict[str, list[str]] = {}
        for name in self.log.origins:
            reason = config.unused(name)
            if reason and value_at(config, name) != self.keys.keys[name].default:
                unused.setdefault(reason, []).append(name)
        if not unused:
            return config
        self.notes += tuple(f"{', '.join(names)}: {reason}" for reason, names in unused.items())
        defaults = [Assignment(name, self.keys.keys[name].default) for name in chain(*unused.values())]
        assign(self.tree, defaults, self.keys, self.log)
        return self._typed(self.tree)

    def _check(self, config: TaskConfig) -> None:
        """Notes the errors in the values; one that is none of its key's is not looked at further."""
        for name, line in config.read_values(self.keys).items():
            self.log.add_consequences([line])
            self.log.distrust(name)
        self.log.add_consequences(config.own_errors(self.keys))

    def _fetch_models(self, config: "ModelTaskConfig") -> None:
        """Fetches the models that are given by a name on the hub, once nothing else is wrong."""
        from mindbatch.config.hub_models import fetch_models, unfetched

        if unfetched(config.model):
            self._check(config)
            self.log.raise_if_any()
            self.log.add_consequences(fetch_models(config.model))

    def _ask_model(self, config: "ModelTaskConfig") -> None:
        """Puts what the model recommends below what was given, where that was asked for."""
        if self.decoding == MODEL_DEFAULTS:
            config.decoding = self._recommended(config, self.tree, config.decoding, self.set_keys)
        elif self.listing:
            for entry in self.listing:
                if entry.option == MODEL_DEFAULTS:
                    keys = self.set_keys | {item.key for item in entry.values}
                    tree, decoding = self.variants[entry.name], config.variants[entry.name]
                    config.variants[entry.name] = self._recommended(config, tree, decoding, keys)
        elif self.decoding is None and "decoding.do_sample" not in self.set_keys:
            config.notes += _advice_for(config)

    def _recommended(
        self, config: "ModelTaskConfig", tree: DictConfig, decoding: Any, set_keys: Collection[str]
    ) -> Any:
        """The section `decoding` of `tree` with the model's values for the keys that were not set."""
        from mindbatch.decoding.model_defaults import model_defaults
        from mindbatch.decoding.params import DecodingParams

        folder = config.model.checkpoint_name_or_path
        if folder is None or self.log.lines:
            return self._section(tree)
        values = dataclasses.asdict(decoding).items()
        own = {name: value for name, value in values if f"decoding.{name}" in set_keys}
        try:
            defaults, notes = model_defaults(Path(folder), own, DecodingParams)
        except ConfigError as error:
            self.log.add(f"decoding={MODEL_DEFAULTS}: {error}", "decoding")
            return self._section(tree)
        config.notes += tuple(line for line in notes if line not in config.notes)
        settings = [Assignment(f"decoding.{name}", value) for name, value in defaults.items()]
        assign(tree, settings, self.keys, self.log)
        return self._section(tree)

    def _section(self, tree: DictConfig) -> Any:
        """Extracts what a variant has in place of the section of the listed group."""
        group = self.schema.listed_group or "decoding"
        return getattr(self._typed(tree), group)

    def _typed(self, tree: DictConfig) -> TaskConfig:
        """The dataclass of the schema with the values of `tree`; those that have none keep their defaults."""
        config: TaskConfig = _built(self.schema, _resolved(tree, self.keys, self.log))
        return config

    def _content(self, replaced: Mapping[str, Any]) -> dict[str, Any]:
        """The tree in plain types, each ${...} as written, but for the keys that are not kept.

        replaced: values by key in place of those of the tree.
        """
        content: dict[str, Any] = OmegaConf.to_container(self.tree, resolve=False)  # type: ignore[assignment]
        for name, key in self.keys.keys.items():
            place, _, leaf = name.rpartition(".")
            section = content[place] if place else content
            if not key.is_kept:
                section.pop(leaf)
            elif name in replaced:
                section[leaf] = replaced[name]
        return content

    def _yaml(self, replaced: Mapping[str, Any]) -> str:
        """The content as YAML.

        In place of a section for which options were listed stand the list, and its keys that were given.
        """
        content = self._content(replaced)
        if not self.listing:
            return OmegaConf.to_yaml(OmegaConf.create(content))
        group = self.schema.listed_group
        section, content[group] = content[group], [entry.written for entry in self.listing]
        names = ((f"{group}.{leaf}", value) for leaf, value in section.items())
        return OmegaConf.to_yaml(OmegaConf.create(content | {n: v for n, v in names if n in self.set_keys}))

    def _portable_yaml(self, config: TaskConfig) -> str:
        """The tree, of which `config` was built, as YAML that means the same from every working directory.

        A path written with ${...} or `shipped:` stays as it is, and so does standard input. Nothing is
        resolved: what ${...} stands for could be a secret.
        """
        written = _written_values(self.tree, self.keys).items()
        return self._yaml(
            {
                name: _portable(text, value_at(config, name))
                for name, text in written
                if self.keys.keys[name].is_path
            }
        )

    def _settings(self, config: TaskConfig) -> dict[str, Any]:
        """The value of every key of `config`, nested by section, for the record of a run: plain JSON types.

        Paths are absolute. A value written with ${...} is given as written: it may be a secret.
        """
        written = _written_values(self.tree, self.keys).items()
        keys = self.keys.keys
        return self._content(
            {name: _kept_value(keys[name], text, value_at(config, name)) for name, text in written}
        )


def assign(tree: DictConfig, assignments: Iterable[Assignment], schema: SchemaKeys, log: ErrorLog) -> None:
    """Puts each value into `tree`; one of the wrong type leaves it as it was and goes to `log`."""
    for setting in assignments:
        key = schema.keys[setting.key]
        try:
            if not _has_kind(setting.value, key):
                raise TypeError
            OmegaConf.update(tree, key.name, setting.value, merge=False)  # a mapping replaces another
            log.trust(key.name)
        except (OmegaConfBaseException, TypeError, ValueError, RecursionError):
            hint = _ESCAPE if "${" in str(setting.value) else f"must be {key.takes}"
            log.add(f"{setting.source}{key.name}={shown(setting.value)}: {hint}", key.name)


def _has_kind(value: Any, key: Key) -> bool:
    """Refuses what OmegaConf would convert to something else: 3 to true, true to the text `True`."""
    if isinstance(value, str) or value is None:
        return True
    if key.type is bool:
        return isinstance(value, bool)
    return key.type is Any or not isinstance(value, bool)


def _resolved(tree: DictConfig, schema: SchemaKeys, log: ErrorLog) -> dict[str, Any]:
    """The plain value of every key, with each ${...} replaced; one that has no value goes to `log`."""
    values = {}
    for key in schema.keys.values():
        try:
            value = OmegaConf.select(tree, key.name, throw_on_missing=True)
            if OmegaConf.is_config(value):
                value = OmegaConf.to_container(value, resolve=True, throw_on_missing=True)
            values[key.name] = value
        except OmegaConfBaseException as error:
            text = shown(_written_values(tree, schema)[key.name])
            log.add(f"{key.name}={text}: {_why_unresolved(error, text, key)}", key.name)
    return values


def _built(schema: type, values: dict[str, Any], prefix: str = "") -> Any:
    """The dataclass `schema` with `values` by full key; the keys that are not there keep their defaults."""
    hints = get_type_hints(schema)
    arguments = {}
    for entry in dataclasses.fields(schema):
        name = prefix + entry.name
        if dataclasses.is_dataclass(hints[entry.name]):
            arguments[entry.name] = _built(hints[entry.name], values, f"{name}.")
        elif name in values:
            arguments[entry.name] = values[name]
    return schema(**arguments)


def _written_values(tree: DictConfig, schema: SchemaKeys) -> dict[str, Any]:
    """The value of every key as the user wrote it, with its ${...}."""
    content: Any = OmegaConf.to_container(tree, resolve=False)
    values = {}
    for name in schema.keys:
        section, _, leaf = name.rpartition(".")
        values[name] = (content[section] if section else content)[leaf]
    return values


def _why_unresolved(error: OmegaConfBaseException, text: str, key: Key) -> str:
    """The reason in words of our own: OmegaConf's quote the resolved value, which may be a secret."""
    if isinstance(error, MissingMandatoryValue):
        return "??? stands for a value that must be given; set one"
    if isinstance(error, InterpolationValidationError):
        return f"what it stands for must be {key.takes}"
    unset = [name for name in _ENVIRONMENT.findall(text) if name not in os.environ]
    if unset:
        return f"the environment variable {', '.join(unset)} is not set"
    return f"has no value; {_ESCAPE}"


def _kept_value(key: Key, text: Any, value: Any) -> Any:
    if key.is_path and isinstance(text, Mapping):
        return {name: _kept_value(key, item, value[name]) for name, item in text.items()}
    if key.kind.is_text_or_list and isinstance(value, tuple):
        return [_kept_value(key, *pair) for pair in zip(text, value, strict=True)]
    if "${" in str(text):
        return text
    if key.is_path and isinstance(value, str) and value != STANDARD_INPUT:
        return _absolute(value)
    if key.is_path and isinstance(value, Mapping):  # of a file that lists the paths
        return {name: _kept_value(key, item, item) for name, item in value.items()}
    return list(value) if isinstance(value, tuple) else value


def _portable(text: Any, value: Any) -> Any:
    """Makes a written path, or a mapping that holds some, mean the same from any folder.

    value: what came of it.
    """
    if isinstance(text, Mapping):
        return {name: _portable(item, value[name]) for name, item in text.items()}
    if isinstance(text, Sequence) and isinstance(value, tuple) and not isinstance(text, str):
        return [_portable(*pair) for pair in zip(text, value, strict=True)]
    if isinstance(value, Mapping) and "${" not in str(text):  # of a file that lists the paths
        return {name: _portable(item, item) for name, item in value.items()}
    if not isinstance(text, str) or text == STANDARD_INPUT or "${" in text or text.startswith(SHIPPED):
        return text
    return _absolute(value).replace("${", "\\${")


def _absolute(path: str) -> str:
    """`path` from the root; links stay, for they may be meant to be moved."""
    return str(Path.cwd() / path)


def save_config(
    config: TaskConfig, path: Path, storage: Storage | None = None, fixed: Mapping[str, Any] | None = None
) -> None:
    """Writes `config` to `path` as YAML, whole or not at all; ${...} stay as written, so no secret is kept.

    What was drawn stands in it. fixed: by key, what has come of other values that were left to the moment;
    None is left as it is.

    Raises StorageError when it cannot be written.
    """
    values = {name: value for name, value in {**config.drawn, **(fixed or {})}.items() if value is not None}
    text = config.unresolved_yaml
    if values:
        tree: Any = OmegaConf.create(text)
        for name, value in values.items():
            if OmegaConf.is_list(tree.get(name.partition(".")[0])):
                tree[name] = value  # beside the list of options for its section
            else:
                OmegaConf.update(tree, name, value)
        text = OmegaConf.to_yaml(tree)
    write_whole(path, text.encode(), storage)


def _advice_for(config: "ModelTaskConfig") -> tuple[str, ...]:
    """A line if the run is plainly greedy and the model recommends sampling."""
    folder = config.model.checkpoint_name_or_path
    if folder is None or not config.advises_sampling or config.is_continued:
        return ()
    from mindbatch.decoding.model_defaults import sampling_advice
    from mindbatch.decoding.params import DecodingParams

    line = sampling_advice(Path(folder), dataclasses.asdict(config.decoding), DecodingParams)
    return () if line is None else (line,)
