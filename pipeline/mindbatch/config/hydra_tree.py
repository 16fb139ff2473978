"""Composes option files by Hydra: its defaults lists, groups, packages and search path."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra._internal.core_plugins.file_config_source import FileConfigSource
from hydra._internal.sources_registry import SourcesRegistry
from hydra.conf import HydraConf
from hydra.core.config_store import ConfigStore
from hydra.errors import HydraException
from hydra.plugins.config_source import ConfigResult
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from mindbatch.config.error_log import ErrorLog
from mindbatch.config.options import GLOBAL_PACKAGE, Choice, OptionFiles
from mindbatch.config.settings import Assignment, Layer, LayerReader
from mindbatch.config.validation import FIXED_SETTINGS
from mindbatch.config.yaml_file import read_mapping
from mindbatch.io.error_lines import did_you_mean, quoted
from mindbatch.io.errors import ConfigError

HYDRA_VERSION_BASE = "1.3"

EXPERIMENT = "experiment"
"""The group of shipped options that set keys of several groups."""

_ADDED_PRIMARY = "mindbatch_added_primary"

_errors: list[str] = []
"""Errors of the files that Hydra has read since the last call of `_take_errors`."""

_NO_GROUP = re.compile(r"Could not override '([^'@]+)'\. No match.* use \+(\S+)", re.DOTALL)
"""Hydra's message on an option of a group that a configuration does not have."""

_PACKAGE = re.compile(r"^\s*#\s*@package\s+(\S+)", re.MULTILINE)


class StrictFiles(FileConfigSource):
    """Hydra's source of the files in a folder, each read as `read_mapping` reads one."""

    @staticmethod
    def scheme() -> str:
        return "strict"

    def is_config(self, config_path: str) -> bool:
        return ".." not in Path(config_path).parts and super().is_config(config_path)

    def load_config(self, config_path: str) -> ConfigResult:
        """Reads an option's file. A file with errors counts as empty; `_take_errors` returns them."""
        file = Path(self.path) / self._normalize_file_name(config_path)
        content = _content(file)
        if content.pop("hydra", None) is not None:
            _errors.append(f"{file}: hydra: {FIXED_SETTINGS}; remove it")
        return ConfigResult(
            config=OmegaConf.create(content),
            path=self.full_path(),
            provider=self.provider,
            header={"package": package_of(file)},
        )


def _content(file: Path) -> dict[str, Any]:
    try:
        return read_mapping(file, may_name_package=True)
    except ConfigError as error:
        _errors.extend(error.lines)
        return {}


def package_of(file: Path) -> str | None:
    """Returns the package in the header of an option's file; None if there is none."""
    header = _PACKAGE.search(file.read_text("utf-8", errors="replace")[:512])
    return header[1] if header else None


def _take_errors() -> list[str]:
    """Returns the errors of the files that were read since the last call, each once."""
    errors = [*dict.fromkeys(_errors)]
    _errors.clear()
    return errors


class OptionContents:
    """The assignments of chosen options, each with the file that makes it."""

    def __init__(self, primary: str, options: OptionFiles, reader: LayerReader, log: ErrorLog) -> None:
        """primary: the name of the task's own configuration."""
        self.primary = primary
        self.options = options
        self.reader = reader
        self.log = log
        self.chosen_decoding: str | None = None
        """The chosen option of the group `decoding`; None if it is the task's default."""
        self._chosen: tuple[str, tuple[str, ...]] = (primary, ())
        self._of_choice: dict[Choice, list[Assignment]] = {}
        self._keys: dict[Path, frozenset[str]] = {}
        self._arguments: list[str] = []
        if options.added is not None and options.added.is_dir():
            SourcesRegistry.instance().register(StrictFiles)
            self._arguments = [f"hydra.searchpath=[{quoted(f'strict://{options.added.resolve()}')}]"]

    def composed(self, name: str, choices: Sequence[Choice]) -> list[Assignment]:
        """Composes the primary configuration `name` with the last choice for each group."""
        last = {choice.override.partition("=")[0]: choice for choice in choices}
        groups = [choice.group for choice in last.values()]
        self._chosen = name, tuple(choice.override for choice in last.values())
        try:
            content, options = composed_content(self, *self._chosen)
        except ConfigError as error:
            for line in error.lines:
                self.log.add(line, *groups)
            content, options = composed_content(self, self.primary, ())
        for line in _take_errors():
            self.log.add(line, *groups)
        decoding = options.get("decoding")
        if "decoding" in last or decoding != self._own_options().get("decoding"):
            self.chosen_decoding = decoding
        return self._assignments(content, options)

    def of(self, choice: Choice) -> list[Assignment]:
        """Composes one option alone, with the options in its defaults list."""
        if choice not in self._of_choice:
            content = self._content_of(choice.group, choice.option) if choice.option else {}
            self._of_choice[choice] = self._assignments(content, {choice.group: choice.option})
        return self._of_choice[choice]

    def with_options(self, layer: Layer) -> Iterator[Assignment]:
        """Yields the assignments of a layer in their order: first those of its options."""
        for choice in layer.choices:
            yield from self.of(choice)
        yield from layer.assignments

    def in_order(self, layers: Iterable[Layer]) -> Iterator[Assignment]:
        """Yields the assignments that override the composed configuration, from the lowest layer up.

        The composed configuration has all options already, so those of the lowest layer are left out.
        """
        for number, layer in enumerate(filter(None, layers)):
            yield from self.with_options(layer) if number else layer.assignments

    def hydra_yaml(self) -> str:
        """Returns Hydra's own node `hydra` for the composed configuration, as YAML."""
        name, overrides = self._chosen
        with initialize_config_dir(str(self.options.shipped), version_base=HYDRA_VERSION_BASE):
            whole = compose(self._primary(name), [*overrides, *self._arguments], return_hydra_config=True)
        return OmegaConf.to_yaml(OmegaConf.create({"hydra": whole.hydra}))

    def content(self, name: str | None, overrides: Sequence[str]) -> tuple[dict[str, Any], dict[str, str]]:
        """Composes files; returns the content, and the option of each group. Raises ConfigError of one line.

        name: the primary configuration, if any. overrides: choices of groups, in Hydra's grammar.
        """
        primary = name and self._primary(name)
        shipped = initialize_config_dir(str(self.options.shipped), version_base=HYDRA_VERSION_BASE)
        try:
            with _without_program_settings(), shipped:
                tree = compose(primary, [*overrides, *self._arguments], return_hydra_config=True)
        except RecursionError as error:
            raise ConfigError(f"{', '.join(overrides)}: its defaults lead back to itself") from error
        except (HydraException, OmegaConfBaseException, ValueError) as error:
            raise ConfigError(_one_line(error)) from error
        choices = {group: str(option) for group, option in tree.hydra.runtime.choices.items() if option}
        content: Any = OmegaConf.to_container(tree, resolve=False)
        del content["hydra"]
        return content, choices

    def _assignments(self, content: Mapping[str, Any], options: Mapping[str, str]) -> list[Assignment]:
        return self.reader.read_all(content, lambda key: self._source(key, options)).assignments

    def _content_of(self, group: str, option: str) -> dict[str, Any]:
        file = self.options.file(group, option)
        if file is not None and package_of(file) == GLOBAL_PACKAGE:
            return {key: value for key, value in _content(file).items() if key != "defaults"}
        return self.content(None, [f"+{group}={option}"])[0]

    def _own_options(self) -> dict[str, str]:
        """Returns the default options in the task's own file, by group."""
        defaults = read_mapping(self.options.shipped / f"{self.primary}.yaml").get("defaults", [])
        return {
            group: option for entry in defaults if isinstance(entry, dict) for group, option in entry.items()
        }

    def _primary(self, name: str) -> str:
        """Returns a name by which Hydra finds a primary configuration: it searches its first folder only."""
        if self.options.file("", name) is None:
            near = did_you_mean(name, self.options.names(""))
            raise ConfigError(f"--config-name {name}: there is no such file in --config-dir{near}")
        if (self.options.shipped / f"{name}.yaml").is_file():
            return name
        ConfigStore.instance().store(_ADDED_PRIMARY, {"defaults": [name, "_self_"]})
        return _ADDED_PRIMARY

    def _source(self, key: str, choices: Mapping[str, str]) -> str:
        """Finds the file that most likely set a key of a composed configuration: `FILE: `, or ""."""
        for group, option in reversed([*choices.items()]):
            file = self.options.file(group, option)
            if file is None or (file.is_relative_to(self.options.shipped) and group != EXPERIMENT):
                continue
            if file not in self._keys:
                package = package_of(file) or group.replace("/", ".")
                prefix = "" if package == GLOBAL_PACKAGE else f"{package}."
                self._keys[file] = frozenset(_dotted_keys(_content(file), prefix))
            if key in self._keys[file]:
                return f"{file}: "
        return ""


def composed_content(
    contents: OptionContents, name: str, overrides: tuple[str, ...]
) -> tuple[dict[str, Any], dict[str, str]]:
    """Calls `content`. Tests replace this function by one with a cache."""
    return contents.content(name, overrides)


@contextmanager
def _without_program_settings() -> Iterator[None]:
    """Composes without Hydra's launchers, loggers and help, which take half of the time.

    They are restored afterwards, because the process may be a program of Hydra.
    """
    store, name = ConfigStore.instance(), "config.yaml"
    own = store.repo["hydra"][name]
    store.store(group="hydra", name=name, node=HydraConf(defaults=[]), provider="hydra")
    try:
        yield
    finally:
        store.repo["hydra"][name] = own


def _dotted_keys(content: Mapping[str, Any], prefix: str) -> Iterator[str]:
    for name, value in content.items():
        yield prefix + name
        if isinstance(value, Mapping):
            yield from _dotted_keys(value, f"{prefix}{name}.")


def _one_line(error: BaseException) -> str:
    """Shortens Hydra's message: no search path, and no advice for programs of Hydra."""
    while not str(error) and error.__cause__ is not None:
        error = error.__cause__
    text = str(error).partition("\nConfig search path:")[0].partition("\nSearch path:")[0]
    if other := _NO_GROUP.match(text):
        return f"{other[2]}: this task takes no option of {other[1]}"
    return " ".join(text.replace("\t", " ").split())
