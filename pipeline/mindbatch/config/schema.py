"""Building blocks of schemas: keys, their documentation and other names, and what every task carries."""

import dataclasses
import importlib
import types
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Union, get_args, get_origin, get_type_hints

from mindbatch.config.faults import shown
from mindbatch.io.fault_lines import did_you_mean, nearest, under_own_names

LARGEST_COUNT = 2**31 - 1
TYPE_NAMES = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}


def option(
    default: Any,
    meaning: str,
    *,
    choices: tuple[Any, ...] = (),
    minimum: int | None = None,
    maximum: int = LARGEST_COUNT,
    accepts: str = "",
    is_path: bool = False,
    topic: str = "",
    is_kept: bool = True,
) -> Any:  # Any, as `dataclasses.field` has it: the annotation of the class attribute is the type
    """A field whose one-line `meaning` is its documentation; `choices` and bounds are checked.

    `accepts` says what may be given where the type is Any. With `is_path` a text names a file or folder,
    which a saved configuration has as an absolute path. `topic` heads this key and the next ones in help.
    Without `is_kept` it is gone once it is read: no configuration that is shown or saved has it.
    """
    metadata = {
        "meaning": meaning,
        "choices": choices,
        "minimum": minimum,
        "maximum": maximum,
        "accepts": accepts,
        "is_path": is_path,
        "topic": topic,
        "is_kept": is_kept,
    }
    return field(default=default, metadata=metadata)


def section(schema: type) -> Any:
    """A nested group of keys; the docstring of `schema` is its meaning."""
    return field(default_factory=schema)


class TaskConfig:
    """Base of the composed configuration of every task: what it carries besides its keys."""

    # Not annotated: a dataclass field would become a key that users could set.
    unresolved_yaml = ""
    """The configuration as YAML that gives it again from any folder, each ${...} as written."""

    resolved_settings = dict[str, Any]()
    """The values of all keys, nested as in YAML; one written with ${...} stays so, for it may be a secret."""

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

    runs_model: ClassVar[bool] = False
    """True if the schema is a ModelTaskConfig, which other tasks do not import: it declares much."""

    verbose_key: ClassVar[str] = "verbose"
    """The key that --verbose sets."""

    @property
    def wants_verbose(self) -> bool:
        """True if the user asked for the messages of MindSpore and MindFormers and for tracebacks."""
        return bool(value_at(self, self.verbose_key))

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

    def settle_paths(self) -> list[str]:
        """Replaces `shipped:` and ~ in the paths by what they mean; returns their faults."""
        return []

    def unused(self, name: str) -> str | None:
        """Explains why the key has no part in what is asked for; None where it has one."""
        return None

    def value_faults(self, keys: "SchemaKeys") -> Iterator[str]:
        for key in keys.keys.values():
            value = value_at(self, key.name)
            if fault := key.fault(value):
                yield f"{key.name}={shown(value)}: {fault}"

    def own_faults(self, keys: "SchemaKeys") -> Iterable[str]:
        """The faults in the values besides those of `choices` and `minimum`; the paths are settled."""
        return ()


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
class Key:
    name: str
    """Dotted, as on the command line: `decoding.top_p`."""

    type: Any
    """bool, int, float, str, or Any for values that are checked further on."""

    optional: bool
    """True if null is allowed."""

    default: Any
    meaning: str
    choices: tuple[Any, ...]
    minimum: int | None
    maximum: int
    accepts: str
    """Allowed values, in words, where the type is Any."""

    is_path: bool
    """True if a text given for it names a file or folder."""

    topic: str
    """Topic of this key and those after it; empty where the one before goes on."""

    is_kept: bool
    """True if configurations that are shown or saved have it."""

    @property
    def expected(self) -> str:
        words = self.accepts or TYPE_NAMES[self.type]
        return f"{words} or null" if self.optional else words

    def has_type(self, value: Any) -> bool:
        """True if a value given from Python is of the key's type; a whole number is also a number."""
        if self.type is Any or value is None:
            return self.type is Any or self.optional
        if isinstance(value, bool):
            return self.type is bool
        return isinstance(value, (int, float) if self.type is float else self.type)

    def fault(self, value: Any) -> str | None:
        """Checks a value's type, `choices` and bounds; None if it is within them."""
        if not self.has_type(value):
            return f"must be {self.expected}"
        if value is None:
            return None
        if self.choices and value not in self.choices:
            near = did_you_mean(value, self.choices) if isinstance(value, str) else ""
            return f"must be one of {', '.join(map(str, self.choices))}{near}"
        if self.minimum is not None and not self.minimum <= value <= self.maximum:
            return f"must be from {self.minimum} to {self.maximum}"
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


def value_at(config: Any, name: str) -> Any:
    for part in name.split("."):
        config = getattr(config, part)
    return config


def schema_keys(schema: type) -> SchemaKeys:
    """The keys of the dataclass `schema`; a field that is itself a dataclass is a section."""
    keys = {key.name: key for key in _walk(schema, "")}
    hints = get_type_hints(schema)
    names = [entry.name for entry in dataclasses.fields(schema)]
    sections = {name: _first_line(hints[name]) for name in names if dataclasses.is_dataclass(hints[name])}
    return SchemaKeys(keys, sections)


def _walk(schema: Any, prefix: str) -> Iterator[Key]:
    hints = get_type_hints(schema)
    for entry in dataclasses.fields(schema):
        hint = hints[entry.name]
        if dataclasses.is_dataclass(hint):
            yield from _walk(hint, f"{entry.name}.")
        else:
            plain, optional = _without_none(hint)
            yield Key(prefix + entry.name, plain, optional, entry.default, **entry.metadata)


def _without_none(hint: Any) -> tuple[Any, bool]:
    if get_origin(hint) not in (types.UnionType, Union):
        return hint, False
    rest = [part for part in get_args(hint) if part is not type(None)]
    return rest[0], len(rest) < len(get_args(hint))


def _first_line(schema: Any) -> str:
    return (schema.__doc__ or "").strip().splitlines()[0]


_DECODING = "decoding."
_PATH = "model.checkpoint_name_or_path"
_PATHS = (
    *("model.path", "model.name", "model.folder", "model.dir", "model.name_or_path", "checkpoint", "ckpt"),
    *("model_path", "model_name", "model_name_or_path", "pretrained_model_name_or_path"),
)
OWN_NAMES: Mapping[str, str] = {
    "tensor_parallel_size": "parallel.model_parallel",
    "pipeline_parallel_size": "parallel.pipeline_stage",
    "data_parallel_size": "parallel.data_parallel",
    "max_model_len": "model.seq_length",
    "max_num_seqs": "model.batch_size",
    "max_num_batched_tokens": "runtime.max_batched_tokens",
    "enable_prefix_caching": "runtime.prefix_caching",
    "kv_cache_dtype": "model.cache_dtype",
    **dict.fromkeys(_PATHS, _PATH),
}
"""By another name, the key of the same meaning; those of decoding parameters stand with each of them."""
INSTEAD: Mapping[str, str] = {
    "gpu_memory_utilization": "runtime.cache_memory says how much memory the cache takes, as 8GiB",
    "trust_remote_code": "code of a model folder is never executed; remove it",
    "stop_token_ids": "decoding.eos_token_id names all tokens that end a text, the model's own among them",
}
"""By another name that no key stands for, what there is instead."""


def own_key(name: str, keys: Collection[str]) -> str | None:
    """The one of the keys that an unknown name, whatever its section, stands for."""
    leaf = name.rpartition(".")[2]
    own = OWN_NAMES.get(name) or OWN_NAMES.get(leaf)
    if own is None and any(key.startswith(_DECODING) for key in keys):
        from mindbatch.decoding.params import OTHER_NAMES  # not where nothing is decoded

        own = _DECODING + OTHER_NAMES.get(leaf, "")
    return own if own is not None and own in keys else None


def own_keywords(arguments: Mapping[str, Any], keywords: Mapping[str, str]) -> dict[str, Any]:
    """The arguments under their own names. keywords: by key, the name of the argument.

    Raises:
        TypeError: an argument is given under two names.
    """
    names = {other: keywords[key] for other, key in OWN_NAMES.items() if key in keywords}
    own, twice = under_own_names(arguments, names)
    if twice:
        raise TypeError("; ".join(twice))
    return own
