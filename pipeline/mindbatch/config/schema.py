"""Building blocks of schemas: keys, their documentation and other names, and what every task carries."""

import dataclasses
import importlib
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
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
"""The values of a type, where a key says no more."""
_FLAGS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
_CONVERSIONS: Mapping[tuple[type, type], Callable[[Any], Any]] = {
    (int, str): str,
    (float, str): str,
    (int, float): float,
    (str, float): float,
    (str, int): int,
    (str, bool): lambda text: _FLAGS[text.lower()],
}
"""By the type of what is written and that of its key."""


@dataclass(frozen=True)
class Option(Field):
    """Declaration of a key.

    is_path: a text given for it names a file or folder, which a saved configuration has as an absolute path.
    is_kept: configurations that are shown or saved have it.
    """

    is_path: bool = False
    is_kept: bool = True


_BY_TYPE = kinds.described("")


def option(default: Any, meaning: str, kind: ValueKind = _BY_TYPE, **more: Any) -> Any:
    """A field of a schema, of which `Option(default, kind, meaning, **more)` is said.

    kind: all values of the annotation's type where it is not given.
    """
    return declare(Option(default, kind, meaning, **more))


def needs(key: str, *values: Any, remedy: str | None = None) -> Need:
    """Declares that an option has an effect only where `key` has one of `values`; without these, any value.

    remedy: as of Need; else to give the first of the values.
    """

    def met(config: Any) -> bool:
        value = value_at(config, key)
        return value in values if values else _is_given(value)

    if remedy is None:
        remedy = f"set {key}={as_typed(values[0])}" if values else f"give {key}"
    return Need(met, key, remedy)


def excludes(key: str, *values: Any) -> Need:
    """Declares that an option has no effect where `key` has one of `values`; without these, any value."""

    def met(config: Any) -> bool:
        value = value_at(config, key)
        return value not in values if values else not _is_given(value)

    return Need(met, key)


def _is_given(value: Any) -> bool:
    return value is not None and value is not False and value != () and value != [] and value != {}


def private_option() -> Any:
    """The field of a section that says whom the files of a task are for; see `TaskConfig.is_private`."""
    return option(
        True, "new files and folders are this user's alone where umask is the usual 022; false: as umask is"
    )


def section(schema: type) -> Any:
    """A nested group of keys; the docstring of `schema` is its meaning."""
    return field(default_factory=schema)


class WrittenConfig(Protocol):
    """A configuration as it was written (`config.saved`), with each ${...}."""

    @property
    def values(self) -> Mapping[str, Any]: ...

    def portable_yaml(self, config: "TaskConfig") -> str: ...

    def settings(self, config: "TaskConfig") -> dict[str, Any]: ...


class TaskConfig:
    """Base of the composed configuration of every task: what it carries besides its keys."""

    # Not annotated: a dataclass field would become a key that users could set.
    written = cast("WrittenConfig | None", None)
    """The configuration as it was written; None where it was made otherwise."""

    drawn = dict[str, Any]()
    """By key, what was drawn in place of a value that leaves it to chance."""

    notes = tuple[str, ...]()
    """Notes that the user should read before the task begins."""

    variants = dict[str, Any]()
    """By option listed for `listed_group`: the group's section with the values of that option."""

    listed_group: ClassVar[str] = ""
    """The group for which a list of options is taken, each of which makes a variant of the section."""

    listed_options: ClassVar[tuple[str, ...]] = ()
    """The list where the user gives none."""

    positional: ClassVar[tuple[str, ...]] = ()
    """The keys that words without `=` stand for, in this order."""

    positional_rest: ClassVar[str] = ""
    """The key for all further words, as a list; empty where there is none."""

    continues_run: ClassVar[bool] = False
    """True if the task starts from the configuration saved in output.dir."""

    continuing_key: ClassVar[str] = ""
    """The key that, when true, makes it start from there."""

    used: ClassVar[frozenset[str]] = frozenset()
    """The keys that the task has, where it does not have all of its sections: their names, or a section's."""

    runs_model: ClassVar[bool] = False
    """True if the schema is a ModelTaskConfig, which other tasks do not import: it declares much."""

    verbose_key: ClassVar[str] = "verbose"
    """The key that --verbose sets."""

    @property
    def unresolved_yaml(self) -> str:
        """The configuration as YAML that gives it again from any folder, each ${...} as written."""
        return "" if self.written is None else self.written.portable_yaml(self)

    @property
    def resolved_settings(self) -> dict[str, Any]:
        """The values of all keys, nested as in YAML; one written with ${...} stays: it may be a secret."""
        return {} if self.written is None else self.written.settings(self)

    @property
    def wants_verbose(self) -> bool:
        """True if the user asked for libraries' messages, tracebacks and the requests to a server."""
        return bool(value_at(self, self.verbose_key))

    @property
    def is_private(self) -> bool:
        """True if what the task writes holds people's data, and nobody has said who else may read it."""
        return False

    @property
    def thread_count(self) -> int | None:
        """Threads asked for; None leaves the choice to the machine."""
        return None

    @property
    def is_launched(self) -> bool:
        """True if the keys ask for more than the task in this process: others, a launcher, or a dry run."""
        return False

    @property
    def is_continued(self) -> bool:
        """True if the configuration began with one that was saved."""
        return self.continues_run

    def resolve_paths(self) -> list[str]:
        """Replaces `shipped:` and ~ in the paths by what they mean; returns their errors."""
        return []

    def read_values(self, keys: "SchemaKeys") -> dict[str, str]:
        """Puts all values into the forms of their kinds; the errors by key.

        The default stands in for a value of another type, which no further check could read.
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
        """Yields the errors in the values besides those of each key's kind; the paths are resolved."""
        yield from self.own_errors(keys)
        yield from self.need_errors(keys)

    def own_errors(self, keys: "SchemaKeys") -> Iterable[str]:
        """The errors that are declared on no key."""
        return ()


def _without_effect(name: str, value: Any, need: Need, config: TaskConfig) -> str:
    other = value_at(config, need.missing)
    is_there = other is False or _is_given(other)
    cause = f"with {need.missing}={shown(other)}" if is_there else f"without {need.missing}"
    remedy = f"{need.remedy} or remove it" if need.remedy else "remove it"
    return f"{name}={shown(value)}: has no effect {cause}; {remedy}"


@dataclass(frozen=True)
class Task:
    """One word of the command line. Its schema and code are imported when they are asked for."""

    name: str
    summary: str

    keys: str
    """The schema, as MODULE:CLASS."""

    module: str
    """Holds `run(config) -> int`."""

    examples: tuple[str, ...]

    first: tuple[str, ...] = ()
    """The keys, and groups of options, that people use first: its page of help. Without any it has all."""

    implied: tuple[str, ...] = ()
    """Overrides that the name of the task stands for."""

    configuration: str = ""
    """Its shipped file, where that is not named after the task."""

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
        """Which values, as words that follow "must be"."""
        words = self.kind.takes
        return f"{words}{',' * (',' in words)} or null" if self.optional else words

    @property
    def in_help(self) -> str:
        brief = self.kind.brief or self.kind.takes
        return f"{brief} {'|' if self.kind.names else 'or'} null" if self.optional else brief

    def converted(self, value: Any) -> Any:
        """A value of the key's type where a file or variable has it as another: a text of digits, 1 for 1.0.

        Raises ValueError for one of another type.
        """
        if self.type is Any or (value is None and self.optional) or type(value) is self.type:
            return value
        try:
            return _CONVERSIONS[type(value), self.type](value)
        except (ValueError, KeyError, OverflowError):
            raise ValueError(f"must be {self.takes}") from None

    def read(self, value: Any) -> Any:
        """The one form of a value. Raises ValueError as the kind does."""
        return None if value is None and self.optional else self.kind.read(value)

    def error(self, value: Any) -> str | None:
        """Explains why a value is none that the key takes; None if it is one."""
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
    """Section name -> one-line meaning; the keys of no section belong to the section ''."""

    def nearest(self, name: str) -> str | None:
        """The full key, or section, most likely meant by the unknown `name`, its group missing or wrong."""
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
    """The part of a configuration that has a key."""
    for part in name.split(".")[:-1]:
        config = getattr(config, part)
    return config


def value_at(config: Any, name: str) -> Any:
    return getattr(section_of(config, name), name.rpartition(".")[2])


def schema_keys(schema: type) -> SchemaKeys:
    """The keys of the dataclass `schema`; a field that is itself a dataclass is a section."""
    used: frozenset[str] = getattr(schema, "used", frozenset())
    keys = {
        key.name: key
        for key in _walk(schema, "")
        if not used or key.name in used or key.name.partition(".")[0] in used
    }
    hints = get_type_hints(schema)
    sections = dict.fromkeys(name.partition(".")[0] for name in keys if "." in name)
    return SchemaKeys(keys, {name: _first_line(hints[name]) for name in sections})


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
    """The one of the keys that an unknown name, whatever its section, stands for."""
    others = {other: key.name for key in keys.values() for other in key.aliases}
    return others.get(name) or others.get(name.rpartition(".")[2])
