"""The help pages: the tasks with examples, and the keys of one task as its schema documents them."""

import json
from collections.abc import Mapping

from mindbatch.config.options import OptionFiles
from mindbatch.config.schema import Key, SchemaKeys, TaskConfig, schema_keys
from mindbatch.io.fault_lines import as_typed
from mindbatch.tasks.registry import TASKS, Task

KNOWN_SECTIONS = frozenset({"model", "decoding", "parallel", "launch", "runtime", "data", "task"})
"""The groups that are sections of some task."""

USAGE = "usage: mindbatch TASK [FLAGS] [KEY=VALUE ...]"


def overview(flags: Mapping[str, str]) -> str:
    """The page of `mindbatch --help`; `flags` are those of every task, with their meanings."""
    width = max(map(len, TASKS))
    tasks = [f"  {name:<{width}}  {task.summary}" for name, task in TASKS.items()]
    examples = [f"  {task.examples[0]}" for task in TASKS.values()]
    closing = ["Keys of a task, and more examples: mindbatch TASK --help"]
    return _page([[USAGE], ["Tasks", *tasks], ["Examples", *examples], _flag_block(flags), closing])


def task_page(task: Task, options: OptionFiles, flags: Mapping[str, str]) -> str:
    keys = schema_keys(task.schema)
    words = [_word(keys.keys[name]) for name in task.schema.positional]
    if rest := task.schema.positional_rest:
        words.append(f"[{rest.upper()} ...]")
    usage = USAGE.replace("TASK", " ".join([task.name, *words]))
    examples = ["Examples", *(f"  {example}" for example in task.examples)]
    sections = [_section(name, keys, options, task.schema) for name in ("", *keys.sections)]
    sections.append(_further_groups(keys, options))
    return _page([[usage, "", task.summary], examples, *filter(None, sections), _flag_block(flags)])


def _further_groups(keys: SchemaKeys, options: OptionFiles) -> list[str]:
    """The groups that are no section: their options set keys of several, where the task has those."""
    groups = sorted(group for group in options.groups if group.partition("/")[0] not in KNOWN_SECTIONS)
    lines = [
        f"  +{group}=NAME: {', '.join(options.names(group))}" for group in groups if options.names(group)
    ]
    return ["Options for several groups at once", *lines] if lines and keys.sections else []


def _word(key: Key) -> str:
    """A word that stands for a key; in brackets when it may be left out."""
    return key.name.upper() if key.default is None else f"[{key.name.upper()}]"


def _section(name: str, schema: SchemaKeys, options: OptionFiles, task: type[TaskConfig]) -> list[str]:
    keys = [schema.keys[key] for key in schema.of_section(name)]
    if not keys:
        return []
    title = f"{name}: {schema.sections[name]}" if name else "Keys"
    lines = [title]
    if name in options.groups and name == task.listed_group:
        lines.append(f"  {name}='[NAME,...]' lists some of these: {', '.join(options.names(name))}")
        lines.append(
            f"      {name}='[{','.join(task.listed_options)}]' if none are given; the keys go for all"
        )
    elif name in options.groups:
        lines.append(f"  {name}=NAME chooses values for the group: {', '.join(options.names(name))}")
    return lines + [line for key in keys for line in _key_lines(key)]


def _key_lines(key: Key) -> list[str]:
    """Formats a key's values and its meaning, below the topic where one begins."""
    heading = ["", f"  {key.topic}"] if key.topic else []
    kind = " | ".join((*map(str, key.choices), *["null"] * key.optional)) if key.choices else key.expected
    return [*heading, f"  {key.name}={_default(key.default)}  ({kind})", f"      {key.meaning}"]


def _default(value: object) -> str:
    """A default as it is typed; a text whose white space would not be seen is in quotes."""
    text = as_typed(value)
    return text if not isinstance(value, str) or text == value != "" else json.dumps(value)


def _flag_block(flags: Mapping[str, str]) -> list[str]:
    width = max(map(len, flags))
    return ["Flags", *(f"  {flag:<{width}}  {meaning}" for flag, meaning in flags.items())]


def _page(blocks: list[list[str]]) -> str:
    return "\n\n".join("\n".join(block) for block in blocks)
