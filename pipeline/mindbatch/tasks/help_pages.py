"""Makes the pages of `--help`: all tasks, or the most used keys, a section or all keys of a task."""

import json
from collections.abc import Iterator, Mapping

from mindbatch.config.options import OptionFiles
from mindbatch.config.schema import Key, SchemaKeys, Task, TaskConfig, schema_keys
from mindbatch.io.error_lines import as_typed, did_you_mean
from mindbatch.io.errors import ConfigError
from mindbatch.tasks.registry import TASKS

ALL = "all"
"""Name of the page with all keys."""

KNOWN_SECTIONS = frozenset({"model", "decoding", "parallel", "launch", "runtime", "data", "task"})
"""The groups of options that are also sections of a task."""

USAGE = "usage: mindbatch TASK [FLAGS] [KEY=VALUE ...]"


def overview(flags: Mapping[str, str]) -> str:
    """Makes the page of `mindbatch --help`. flags: the flags of every task, with their meanings."""
    width = max(map(len, TASKS))
    tasks = [f"  {name:<{width}}  {task.summary}" for name, task in TASKS.items()]
    examples = [f"  {task.examples[0]}" for task in TASKS.values()]
    closing = ["Keys of a task, and more examples: mindbatch TASK --help"]
    return _page([[USAGE], ["Tasks", *tasks], ["Examples", *examples], _flag_block(flags), closing])


def task_page(task: Task, options: OptionFiles, flags: Mapping[str, str], part: str = "") -> str:
    """Makes the page of `mindbatch TASK --help`, or of `--help=PART`.

    part: "all", a section of keys, or "" for the most used keys.

    Raises ConfigError: there is no such part.
    """
    keys = schema_keys(task.schema)
    parts = [ALL, *keys.sections]
    if part and part not in parts:
        raise ConfigError(f"--help={part}: must be one of {', '.join(parts)}{did_you_mean(part, parts)}")
    words = [_word(keys.keys[name]) for name in task.schema.positional]
    if rest := task.schema.positional_rest:
        words.append(f"[{rest.upper()} ...]")
    usage = USAGE.replace("TASK", " ".join([task.name, *words]))
    head = [[usage, "", task.summary], ["Examples", *(f"  {example}" for example in task.examples)]]
    if part in keys.sections:
        return _page([head[0], _section(part, keys, options, task.schema)])
    if task.first and not part:
        sections = [[*_first_keys(task, keys, options)], _rest(task, keys)]
    else:
        sections = [_section(name, keys, options, task.schema) for name in ("", *keys.sections)]
        sections.append(_further_groups(keys, options))
    return _page([*head, *filter(None, sections), _flag_block(flags)])


def _first_keys(task: Task, keys: SchemaKeys, options: OptionFiles) -> Iterator[str]:
    yield "Keys that are used first"
    for name in task.first:
        if name in keys.keys:
            yield from _key_lines(keys.keys[name])
        else:
            yield from _group_lines(name, options, task.schema)


def _rest(task: Task, keys: SchemaKeys) -> list[str]:
    """Makes the lines that say where the other keys are."""
    sections = ", ".join(f"{name} ({len(keys.of_section(name))})" for name in keys.sections)
    command = f"mindbatch {task.name} --help"
    return [
        f"All {len(keys.keys)} keys: {command}={ALL}; those of a section: {command}=SECTION, with",
        f"  {sections}",
    ]


def _further_groups(keys: SchemaKeys, options: OptionFiles) -> list[str]:
    """Lists the groups that are no section: their options set keys of several sections."""
    groups = sorted(group for group in options.groups if group.partition("/")[0] not in KNOWN_SECTIONS)
    lines = [
        f"  +{group}=NAME: {', '.join(options.names(group))}" for group in groups if options.names(group)
    ]
    return ["Options for several groups at once", *lines] if lines and keys.sections else []


def _word(key: Key) -> str:
    """Formats a positional word; in brackets if it may be left out."""
    word = key.name.rpartition(".")[2].upper()
    return word if key.default is None else f"[{word}]"


def _section(name: str, schema: SchemaKeys, options: OptionFiles, task: type[TaskConfig]) -> list[str]:
    keys = [schema.keys[key] for key in schema.of_section(name)]
    if not keys:
        return []
    title = f"{name}: {schema.sections[name]}" if name else "Keys"
    lines = [line for key in keys for line in _topic_lines(key)]
    return [title, *_group_lines(name, options, task), *lines]


def _group_lines(name: str, options: OptionFiles, task: type[TaskConfig]) -> list[str]:
    """Lists the options of a group; empty if the section is no group."""
    if name not in options.groups:
        return []
    names = ", ".join(options.names(name))
    if name != task.listed_group:
        return [f"  {name}=NAME chooses values for the group: {names}"]
    return [
        f"  {name}='[NAME,...]' lists some of these: {names}",
        f"      {name}='[{','.join(task.listed_options)}]' if none are given; the keys go for all",
    ]


def _topic_lines(key: Key) -> list[str]:
    """Formats a key, with the heading of its topic above it if it has one."""
    return [*(["", f"  {key.topic}"] if key.topic else []), *_key_lines(key)]


def _key_lines(key: Key) -> list[str]:
    """Formats a key's values and its meaning."""
    return [f"  {key.name}={_default(key.default)}  ({key.in_help})", f"      {key.meaning}"]


def _default(value: object) -> str:
    """Formats a default as it is typed; a text with invisible white space is quoted."""
    text = as_typed(value)
    return text if not isinstance(value, str) or text == value != "" else json.dumps(value)


def _flag_block(flags: Mapping[str, str]) -> list[str]:
    width = max(map(len, flags))
    return ["Flags", *(f"  {flag:<{width}}  {meaning}" for flag, meaning in flags.items())]


def _page(blocks: list[list[str]]) -> str:
    return "\n\n".join("\n".join(block) for block in blocks)
