"""Building blocks of schemas: keys with declarations and aliases, and the base of all configurations."""

import dataclasses
import importlib
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Protocol, Union, cast, get_args, get_origin, get_type_hints

from mindbatch.config.error_log import shown
from mindbatch.fields import kinds
from mindbatch.fields.field import Field, Need, declare, declared_fields
from mindbatch.fields.kinds import ValueKind
from mindbatch.io.error_lines import as_typed, nearest

_KINDS: Mapping[type, ValueKind] = {
    bool: kinds.flag(),
    int: kinds.whole(),
    float: kinds.number(),
    str: kinds.text(),
}
"""The kind of values by type, for keys that declare none."""
_FLAGS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
_CONVERSIONS: Mapping[tuple[type, type], Callable[[Any], Any]] = {
    (int, str): str,
    (float, str): str,
    (int, float): float,
    (str, float): float,
    (str, int): int,
    (str, bool): lambda text: _FLAGS[text.lower()],
}
"""Conversions of a written value, by its type and the type of its key."""


@dataclass(frozen=True)
class Option(Field):
    """Declaration of a key.

    is_path: its texts are paths of files or folders, which saved configurations hold as absolute paths.
    is_kept: it is part of configurations that are shown or saved.
    """

    is_path: bool = False
    is_kept: bool = True


_BY_TYPE = kinds.described("")


def option(default: Any, meaning: str, kind: ValueKind = _BY_TYPE, **more: Any) -> Any:
    """Declares a field of a schema by `Option(default, kind, meaning, **more)`.

    kind: by default all values of the annotation's type.
    """
    return declare(Option(default, kind, meaning, **more))


def with_default(schema: type, name: str, default: Any) -> Any:
    """Declares a key of a section once more, with another default."""
    return declare(replace(declared_fields(schema)[name], default=default))


def needs(key: str, *values: Any, remedy: str | None = None) -> Need:
    """Declares that an option has an effect only if `key` has one of `values`, by default any value.

    remedy: text of the remedy in the error line; by default, to set `key` to the first of the values.
    """

    def met(config: Any) -> bool:
        value = value_at(config, key)
        return value in values if values else _is_given(value)

    if remedy is None:
        remedy = f"set {key}={as_typed(values[0])}" if values else f"give {key}"
    return Need(met, key, remedy)


def excludes(key: str, *values: Any) -> Need:
    """Declares that an option has no effect if `key` has one of `values`, or, without `values`, any value."""

    def met(config: Any) -> bool:
        value = value_at(config, key)
        return value not in values if values else not _is_given(value)

    return Need(met, key)


def _is_given(value: Any) -> bool:
    return value is not None and value is not False and value != () and value != [] and value != {}


def private_option() -> Any:
    """Declares the field of a section that makes a task's files private (`TaskConfig.is_private`)."""
    return option(
        True, "make new files and folders private to this user if the umask is 022; false: use the umask"
    )


def section(schema: type) -> Any:
    """Declares a nested group of keys; the docstring of `schema` describes it in help."""
    return field(default_factory=schema)


class WrittenConfig(Protocol):
    """A configuration with each ${...} as written; `config.saved` implements it."""

    @property
    def values(self) -> Mapping[str, Any]: ...

    def portable_yaml(self, config: "TaskConfig") -> str: ...

    def settings(self, config: "TaskConfig") -> dict[str, Any]: ...


class TaskConfig:
    """Base of the composed configuration of every task, with attributes that are no keys."""

    # Not annotated: a dataclass field would become a key that users could set.
    written = cast("WrittenConfig | None", None)
    """The configuration as the user wrote it; None if it was not composed from files and a command line."""

    drawn = dict[str, Any]()
    """Values that were drawn at random, by key: the seed of `decoding.seed=random`."""

    notes = tuple[str, ...]()
    """Notes that the user should read before the task begins."""

    variants = dict[str, Any]()
    """Sections of `listed_group`, by the name of each option that the user listed."""

    listed_group: ClassVar[str] = ""
    """The group for which the user may give a list of options; each makes a variant of its section."""

    listed_options: ClassVar[tuple[str, ...]] = ()
    """The default of that list."""

    positional: ClassVar[tuple[str, ...]] = ()
    """Keys that are set by words without `=`, in this order."""

    positional_rest: ClassVar[str] = ""
    """Key that takes all further words as a list; empty if no task key does."""

    continues_run: ClassVar[bool] = False
    """True if the task starts from the configuration saved in output.dir."""

    continuing_key: ClassVar[str] = ""
    """Key that, if true, makes the task start from that configuration, too."""

    used: ClassVar[frozenset[str]] = frozenset()
    """Names of the keys and sections that the task has; empty if it has all keys of its schema."""

    runs_model: ClassVar[bool] = False
    """True if the schema is a ModelTaskConfig. Tasks without a model do not import that class, for speed."""

    verbose_key: ClassVar[str] = "verbose"
    """The key that --verbose sets."""

    @property
    def unresolved_yaml(self) -> str:
        """YAML of the configuration, which means the same in any folder; each ${...} is kept."""
        return "" if self.written is None else self.written.portable_yaml(self)

    @property
    def resolved_settings(self) -> dict[str, Any]:
        """The values of all keys, nested as in YAML. A ${...} is not resolved, because it may be a secret."""
        return {} if self.written is None else self.written.settings(self)

    @property
    def wants_verbose(self) -> bool:
        """True if messages of libraries, tracebacks and the requests to a server are to be shown."""
        return bool(value_at(self, self.verbose_key))

    @property
    def is_private(self) -> bool:
        """True if the files that the task writes may hold personal data, and no key lets others read them."""
        return False

    @property
    def thread_count(self) -> int | None:
        """Number of threads of the kernels; None takes one for each core."""
        return None

    @property
    def is_launched(self) -> bool:
        """True if the task runs in other processes, is started by a launcher, or is only a dry run."""
        return False

    @property
    def is_continued(self) -> bool:
        """True if the configuration starts from a saved one."""
        return self.continues_run

    def resolve_paths(self) -> list[str]:
        """Resolves `shipped:` and ~ in the paths; returns the errors of the paths."""
        return []

    def read_values(self, keys: "SchemaKeys") -> dict[str, str]:
        """Normalises all values by their kinds; returns the errors by key.

        A value of a wrong type is replaced by the default, so that further checks can read the key.
        """
        errors = {}
        for name, key in keys.keys.items():
            section, leaf = section_of(self, name), name.rpartition(".")[2]
            value = getattr(section, leaf)
            try:
                setattr(section, leaf, key.read(value))
            except ValueError as error:
                errors[name] = f"{name}={shown(value)}: {error}"
                if not key.kind.is_plain:
                    setattr(section, leaf, key.default)
        return errors

    def need_errors(self, keys: "SchemaKeys") -> Iterator[str]:
        """Yields a line for each key that was given and has no effect beside the others, as declared.

        Keys of `decoding` declare no needs here: `decoding.parameter.combination_errors` checks theirs.
        """
        yield from filter(None, (self.need_error(key, keys) for key in keys.keys.values()))

    def need_error(self, key: "Key", keys: "SchemaKeys") -> str | None:
        value = value_at(self, key.name)
        if not key.needs or value == key.default or (value == [] and key.default == ()):
            return None
        unmet = (need for need in key.needs if need.missing in keys.keys and not need.met(self))
        need = next(unmet, None)
        return None if need is None else _without_effect(key.name, value, need, self)

    def all_errors(self, keys: "SchemaKeys") -> Iterator[str]:
        """Yields the errors of values that depend on each other, after `resolve_paths` and `read_values`."""
        yield from self.own_errors(keys)
        yield from self.need_errors(keys)

    def own_errors(self, keys: "SchemaKeys") -> Iterable[str]:
        """Returns the errors that no key declares."""
        return ()


def _without_effect(name: str, value: Any, need: Need, config: TaskConfig) -> str:
    other = value_at(config, need.missing)
    is_there = other is False or _is_given(other)
    cause = f"with {need.missing}={shown(other)}" if is_there else f"without {need.missing}"
    remedy = f"{need.remedy} or remove it" if need.remedy else "remove it"
    return f"{name}={shown(value)}: has no effect {cause}; {remedy}"


@dataclass(frozen=True)
class Task:
    """One word of the command line. Its schema and code are imported on first use."""

    name: str
    summary: str

    keys: str
    """The schema, as MODULE:CLASS."""

    module: str
    """Name of the module with `run(config) -> int`."""

    examples: tuple[str, ...]

    first: tuple[str, ...] = ()
    """Keys and groups of options on the page of help, the most used ones; empty shows all."""

    implied: tuple[str, ...] = ()
    """Overrides that the name of the task stands for."""

    configuration: str = ""
    """Name of its shipped file, if that is not the name of the task."""

    @property
    def primary(self) -> str:
        return self.configuration or self.name

    @property
    def schema(self) -> type[TaskConfig]:
        module, _, name = self.keys.partition(":")
        schema: type[TaskConfig] = getattr(importlib.import_module(module), name)
        return schema

    @property
    def run(self) -> Callable[[TaskConfig], int]:
        code: Callable[[TaskConfig], int] = importlib.import_module(self.module).run
        return code


@dataclass(frozen=True)
class Key(Option):
    """A key with its full name, dotted as on the command line: `decoding.top_p`.

    type: bool, int, float, str, or Any. optional: null is allowed, too.
    """

    name: str = ""
    type: Any = Any
    optional: bool = False

    @property
    def takes(self) -> str:
        """Describes the allowed values, in words that follow "must be"."""
        words = self.kind.takes
        return f"{words}{',' * (',' in words)} or null" if self.optional else words

    @property
    def in_help(self) -> str:
        brief = self.kind.brief or self.kind.takes
        return f"{brief} {'|' if self.kind.names else 'or'} null" if self.optional else brief

    def converted(self, value: Any) -> Any:
        """Converts a value of a file or variable to the key's type: a text of digits to a number, 1 to 1.0.

        Raises ValueError if that is not possible.
        """
        if self.type is Any or (value is None and self.optional) or type(value) is self.type:
            return value
        try:
            return _CONVERSIONS[type(value), self.type](value)
        except (ValueError, KeyError, OverflowError):
            raise ValueError(f"must be {self.takes}") from None

    def read(self, value: Any) -> Any:
        """Normalises a value. Raises ValueError if it is not allowed."""
        return None if value is None and self.optional else self.kind.read(value)

    def error(self, value: Any) -> str | None:
        """Explains why a value is not allowed; None if it is."""
        try:
            self.read(value)
        except ValueError as error:
            return str(error)
        return None


@dataclass(frozen=True)
class SchemaKeys:
    """Every key of a task, and the sections that group them."""

    keys: dict[str, Key]
    sections: dict[str, str]
    """One-line descriptions by section; keys without a section are in the section ''."""

    left_out: frozenset[str] = frozenset()
    """Keys of these sections that other tasks have and this one does not."""

    def nearest(self, name: str) -> str | None:
        """Finds the key or section that an unknown name most likely means, whatever its section."""
        section, _, leaf = name.rpartition(".")
        if meant := own_key(name, self.keys):
            return meant
        same_leaf = [key for key in self.keys if key.rpartition(".")[2] == leaf]
        if same_leaf:
            return same_leaf[0]
        sections = [key for key in self.sections if key and key.rpartition(".")[0] == section]
        own = {key.rpartition(".")[2]: key for key in [*self.of_section(section), *sections]}
        everywhere = {key.rpartition(".")[2]: key for key in self.keys}
        for leaves in (own, everywhere):
            match = nearest(leaf, leaves)
            if match:
                return leaves[match]
        return None

    def of_section(self, section: str) -> list[str]:
        return [key for key in self.keys if key.rpartition(".")[0] == section]


def section_of(config: Any, name: str) -> Any:
    """Returns the section of a configuration that has the key `name`."""
    for part in name.split(".")[:-1]:
        config = getattr(config, part)
    return config


def value_at(config: Any, name: str) -> Any:
    return getattr(section_of(config, name), name.rpartition(".")[2])


def schema_keys(schema: type) -> SchemaKeys:
    """Lists the keys of the dataclass `schema`; a field that is itself a dataclass is a section."""
    used: frozenset[str] = getattr(schema, "used", frozenset())
    every = {key.name: key for key in _walk(schema, "")}
    keys = {
        name: key for name, key in every.items() if not used or name in used or name.partition(".")[0] in used
    }
    hints = get_type_hints(schema)
    sections = dict.fromkeys(name.partition(".")[0] for name in keys if "." in name)
    left_out = frozenset(every.keys() - keys.keys())
    return SchemaKeys(keys, {name: _first_line(hints[name]) for name in sections}, left_out)


def _walk(schema: Any, prefix: str) -> Iterator[Key]:
    hints, options = get_type_hints(schema), declared_fields(schema)
    for entry in dataclasses.fields(schema):
        hint = hints[entry.name]
        if dataclasses.is_dataclass(hint):
            yield from _walk(hint, f"{entry.name}.")
        else:
            own = options[entry.name]
            plain, optional = _without_none(hint)
            kind = _KINDS[plain] if own.kind is _BY_TYPE else own.kind
            full = {"name": prefix + entry.name, "type": plain, "optional": optional, "kind": kind}
            yield Key(**vars(own) | full)


def _without_none(hint: Any) -> tuple[Any, bool]:
    if get_origin(hint) not in (types.UnionType, Union):
        return hint, False
    rest = [part for part in get_args(hint) if part is not type(None)]
    return rest[0], len(rest) < len(get_args(hint))


def _first_line(schema: Any) -> str:
    return (schema.__doc__ or "").strip().splitlines()[0]


def own_key(name: str, keys: Mapping[str, Key]) -> str | None:
    """Finds the key of which an unknown name is an alias, in any section."""
    others = {other: key.name for key in keys.values() for other in key.aliases}
    return others.get(name) or others.get(name.rpartition(".")[2])
