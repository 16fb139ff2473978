"""Saves a configuration beside outputs, as YAML that means the same in any folder, and reads it back."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from mindbatch.config.error_log import ErrorLog, shown
from mindbatch.config.paths import (
    LONGEST_SHOWN,
    SAVED_CONFIG,
    SHIPPED,
    STANDARD_INPUT,
    near_sibling,
    resolve_path,
)
from mindbatch.config.schema import Key, TaskConfig, WrittenConfig, schema_keys, value_at
from mindbatch.config.settings import OUTPUT_FOLDER, Layer, LayerReader, Listed
from mindbatch.config.validation import nested
from mindbatch.io.storage import Storage, write_whole
from mindbatch.remote.address import is_remote

NOT_CONTINUED = {"output.on_mismatch"}
"""Keys that are not read from a saved configuration: they concern a folder that existed before the run."""


@dataclass(frozen=True)
class WrittenSettings:
    """A configuration as written. Each ${...} is kept, because its value may be a secret.

    values: the written value of every key. folder: relative paths start there.
    set_keys: the keys that the user set. listing: the options listed for `listed_group`.
    """

    schema: type[TaskConfig]
    values: Mapping[str, Any]
    folder: Path
    set_keys: frozenset[str] = frozenset()
    listing: tuple[Listed, ...] = ()

    @classmethod
    def of_derived(cls, derived: TaskConfig, other: WrittenConfig | None) -> "WrittenSettings":
        """Describes a configuration that another task derived from its own, `other`, and keeps its ${...}."""
        texts = {} if other is None else {name: v for name, v in other.values.items() if "${" in str(v)}
        values = {name: texts.get(name, value_at(derived, name)) for name in schema_keys(type(derived)).keys}
        return cls(type(derived), values, Path.cwd())

    def as_yaml(self) -> str:
        return self._yaml({})

    def portable_yaml(self, config: TaskConfig) -> str:
        """Returns YAML that means the same in every working directory.

        Paths with ${...} or `shipped:` and standard input are kept. config: has the resolved values.
        """
        keys = schema_keys(self.schema).keys
        paths = [name for name in self.values if keys[name].is_path]
        return self._yaml({name: self._portable(self.values[name], value_at(config, name)) for name in paths})

    def settings(self, config: TaskConfig) -> dict[str, Any]:
        """Returns the values of `config` for the record of a run, nested by section, in JSON types.

        Paths are absolute. Values with ${...} are kept as written.
        """
        keys = schema_keys(self.schema).keys
        return self._content(
            {name: self._kept(keys[name], text, value_at(config, name)) for name, text in self.values.items()}
        )

    def _content(self, replaced: Mapping[str, Any]) -> dict[str, Any]:
        """Nests the values of all kept keys by section. replaced: values that override the written ones."""
        kept = {name for name, key in schema_keys(self.schema).keys.items() if key.is_kept}
        return nested({name: replaced.get(name, self.values[name]) for name in self.values if name in kept})

    def _yaml(self, replaced: Mapping[str, Any]) -> str:
        """Returns the content as YAML, with the list of options and the keys set beside it, if any."""
        content = self._content(replaced)
        if self.listing:
            group = self.schema.listed_group
            section, content[group] = content[group], [entry.written for entry in self.listing]
            names = {f"{group}.{leaf}": value for leaf, value in section.items()}
            content |= {name: value for name, value in names.items() if name in self.set_keys}
        return OmegaConf.to_yaml(OmegaConf.create(content))

    def _kept(self, key: Key, text: Any, value: Any) -> Any:
        if key.is_path and isinstance(text, Mapping):
            return {name: self._kept(key, item, value[name]) for name, item in text.items()}
        if key.kind.is_text_or_list and isinstance(value, tuple):
            return [self._kept(key, *pair) for pair in zip(text, value, strict=True)]
        if "${" in str(text):
            return text
        if key.is_path and isinstance(value, str) and not _is_elsewhere(value):
            return self._absolute(value)
        if key.is_path and isinstance(value, Mapping):  # of a file that lists the paths
            return {name: self._kept(key, item, item) for name, item in value.items()}
        return list(value) if isinstance(value, tuple) else value

    def _portable(self, text: Any, value: Any) -> Any:
        """Makes written paths independent of the folder, in mappings and lists, too. value: as resolved."""
        if isinstance(text, Mapping):
            return {name: self._portable(item, value[name]) for name, item in text.items()}
        if isinstance(text, Sequence) and isinstance(value, tuple) and not isinstance(text, str):
            return [self._portable(*pair) for pair in zip(text, value, strict=True)]
        if isinstance(value, Mapping) and "${" not in str(text):  # of a file that lists the paths
            return {name: self._portable(item, item) for name, item in value.items()}
        if not isinstance(text, str) or "${" in text or text.startswith(SHIPPED) or _is_elsewhere(text):
            return text
        return self._absolute(value).replace("${", "\\${")

    def _absolute(self, path: str) -> str:
        """Makes a path absolute. Symbolic links are kept, so that they can be redirected later."""
        return str(self.folder / path)


def _is_elsewhere(text: str) -> bool:
    """True for what is no path in this file system."""
    return text == STANDARD_INPUT or is_remote(text)


def save_config(
    config: TaskConfig, path: Path, storage: Storage | None = None, fixed: Mapping[str, Any] | None = None
) -> None:
    """Writes `config` to `path` as YAML, atomically. Each ${...} is kept, so that no secret is saved.

    Drawn values are saved. fixed: further values by key that a resumed run must have; None changes nothing.

    Raises StorageError if the file cannot be written.
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


def read_saved(values_above: Mapping[str, Any], reader: LayerReader, log: ErrorLog) -> Layer:
    """Reads the settings saved in the folder `output.dir` of `values_above`, which may have been moved.

    Raises ConfigError at once if there are none, because many other errors would follow from that.
    """
    num_errors = len(log.lines)
    file = _saved_file(values_above, log)
    layer = reader.read_file(file) if file else Layer()
    if len(log.lines) > num_errors:
        log.raise_if_any()
    layer.assignments = [item for item in layer.assignments if item.key not in NOT_CONTINUED]
    return layer


def _saved_file(values: Mapping[str, Any], log: ErrorLog) -> Path | None:
    if OUTPUT_FOLDER not in values:
        log.add(f"{OUTPUT_FOLDER}: must be given: the folder of the run", OUTPUT_FOLDER)
        return None
    written = values[OUTPUT_FOLDER]
    try:
        folder = resolve_path(resolved_text(written, "the folder of a run"))
        if (folder / SAVED_CONFIG).is_file():
            return folder / SAVED_CONFIG
        reason = _why_no_run(folder)
    except OSError as error:
        reason = f"cannot be used ({error.strerror})"
    except ValueError as error:
        reason = str(error)
    log.add(f"{OUTPUT_FOLDER}={shown(written, LONGEST_SHOWN)}: {reason}", OUTPUT_FOLDER)
    return None


def _why_no_run(folder: Path) -> str:
    if folder.is_dir():
        return f"holds no run (there is no {SAVED_CONFIG})"
    return (
        "is a file; give the folder of a run" if folder.exists() else f"no such folder{near_sibling(folder)}"
    )


def resolved_text(written: object, meaning: str) -> str:
    """Resolves variables of the environment in a text. Raises ValueError if the result is no text."""
    try:
        text = OmegaConf.create({"text": written}).text
    except OmegaConfBaseException as error:
        raise ValueError("has no value") from error
    if not isinstance(text, str) or not text:
        raise ValueError(f"must be {meaning}")
    return text
