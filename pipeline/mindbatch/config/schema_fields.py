"""What schemas are made of: keys with their documentation, sections, and what every task carries."""

from dataclasses import field
from typing import Any, ClassVar

LARGEST_COUNT = 2**31 - 1


def option(
    default: Any,
    meaning: str,
    *,
    choices: tuple[Any, ...] = (),
    minimum: int | None = None,
    accepts: str = "",
    is_path: bool = False,
    topic: str = "",
) -> Any:  # Any, as `dataclasses.field` has it: the annotation of the class attribute is the type
    """A field whose one-line `meaning` is its documentation; `choices` and `minimum` are checked.

    `accepts` says what may be given where the type is Any. With `is_path` a text names a file or folder,
    which a saved configuration has as an absolute path. `topic` heads this key and the next ones in help.
    """
    metadata = {
        "meaning": meaning,
        "choices": choices,
        "minimum": minimum,
        "accepts": accepts,
        "is_path": is_path,
        "topic": topic,
    }
    return field(default=default, metadata=metadata)


def section(schema: type) -> Any:
    """A nested group of keys; the docstring of `schema` is its meaning."""
    return field(default_factory=schema)


class TaskConfig:
    """What the composed configuration of every task carries besides its keys."""

    # Not annotated: a dataclass field would become a key that users could set.
    unresolved_yaml = ""
    """The configuration as YAML that gives it again from any folder, each ${...} as written."""

    resolved_settings = dict[str, Any]()
    """The values of all keys, nested as in YAML; one written with ${...} stays so, for it may be a secret."""

    notes = tuple[str, ...]()
    """What the user should be told before the task begins."""

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
    """Whether the task starts from the configuration saved in output.dir."""

    @property
    def wants_verbose(self) -> bool:
        """Whether the user asked for the messages of MindSpore and MindFormers and for tracebacks."""
        raise NotImplementedError

    @property
    def thread_count(self) -> int | None:
        """Threads asked for; None leaves the choice to the machine."""
        return None
