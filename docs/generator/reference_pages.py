"""The reference pages of the documentation, read off the package: tasks with their keys, LLM, DecodingParams.

python docs/generator/reference_pages.py FOLDER writes them; the site has them by site_hooks.py.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import mindbatch
from mindbatch.config.schema import Key, SchemaKeys, schema_keys
from mindbatch.decoding.params import PARAMETERS
from mindbatch.tasks.registry import TASKS

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
TITLES = {
    "reference/tasks.md": "Tasks and their keys",
    "reference/sections.md": "Sections that tasks share",
    "reference/llm.md": "LLM, AsyncLLM and what they return",
    "reference/decoding_params.md": "DecodingParams",
}
CLASSES: dict[str, tuple[str, ...]] = {
    "LLM": ("generate", "chat", "stream", "steps", "close", "tokenizer", "seq_length", "statistics"),
    "AsyncLLM": ("load", "generate", "stream", "close"),
    "RequestOutput": (),
    "CompletionOutput": (),
    "StreamEvent": (),
    "TextStreamer": ("put", "end"),
    "MindBatchError": (),
    "ConfigError": (),
    "CheckpointError": (),
    "PromptError": (),
}
"""What users import from mindbatch, and the members that they call."""
_HEADS = ("Args:", "Raises:", "Returns:", "Yields:")
_ENTRY = re.compile(r"(\w+(?:, \w+)*): (.*)")

Section = tuple[str, tuple[Key, ...]]


def pages() -> dict[str, str]:
    """By path within the site, the Markdown of each page of the reference."""
    texts = {
        "reference/tasks.md": _tasks(),
        "reference/sections.md": _sections(),
        "reference/llm.md": _classes(),
        "reference/decoding_params.md": _decoding(),
    }
    return {name: f"# {TITLES[name]}\n\n{text}\n" for name, text in texts.items()}


def _shared() -> dict[Section, list[str]]:
    """The sections that several tasks have, key for key, each with the names of these tasks."""
    tasks: dict[Section, list[str]] = defaultdict(list)
    for task in TASKS.values():
        keys = schema_keys(task.schema)
        for name in keys.sections:
            tasks[name, _keys_of(keys, name)].append(task.name)
    return {section: names for section, names in tasks.items() if len(names) > 1}


def _tasks() -> str:
    shared = _shared()
    parts = [
        "What `mindbatch TASK --help` says, of every task. A key is given as `KEY=VALUE`, or in a YAML file "
        "for `--config`."
    ]
    for task in TASKS.values():
        keys = schema_keys(task.schema)
        parts += [f"## {task.name}", _sentence(task.summary), _fenced("\n".join(task.examples), "bash")]
        own = [keys.keys[name] for name in keys.of_section("")]
        if own:
            parts.append(_table(own))
        linked = []
        for name in keys.sections:
            section = (name, _keys_of(keys, name))
            if section in shared:
                linked.append(f"[`{name}`](sections.md#{_anchor(section, shared)})")
            else:
                parts += [f"### {name} (of {task.name})", _sentence(keys.sections[name])]
                parts += [*_options(name), _table(section[1])]
        if linked:
            parts.append(f"Sections that other tasks have, too: {', '.join(linked)}.")
    return "\n\n".join(parts)


def _sections() -> str:
    parts = []
    shared = _shared()
    for section, tasks in shared.items():
        name, keys = section
        meaning = schema_keys(TASKS[tasks[0]].schema).sections[name]
        parts += [f"## {_heading(section, shared)}", f"{_sentence(meaning)} Of {', '.join(tasks)}."]
        parts += [*_options(name), _table(keys)]
    return "\n\n".join(parts)


def _heading(section: Section, shared: Mapping[Section, list[str]]) -> str:
    """The name of a section, and a task that has it where there are several of the name."""
    alone = sum(name == section[0] for name, _ in shared) == 1
    return section[0] if alone else f"{section[0]} of {shared[section][0]}"


def _anchor(section: Section, shared: Mapping[Section, list[str]]) -> str:
    return _heading(section, shared).replace(" ", "-")


def _keys_of(keys: SchemaKeys, section: str) -> tuple[Key, ...]:
    return tuple(keys.keys[name] for name in keys.of_section(section))


def _options(group: str) -> list[str]:
    """The shipped options of a group, where the section is one."""
    names = sorted(path.stem for path in (CONFIGS / group).glob("*.yaml"))
    return [f"`{group}=NAME` chooses values: {', '.join(f'`{name}`' for name in names)}."] if names else []


def _table(keys: Iterable[Key]) -> str:
    rows = ["| key | default | allowed | meaning |", "|---|---|---|---|"]
    for key in keys:
        rows += [f"| **{key.topic}** | | | |"] if key.topic else []
        rows.append(_row(f"`{key.name}`", f"`{_default(key.default)}`", key.takes, key.meaning))
    return "\n".join(rows)


def _decoding() -> str:
    rows = ["| parameter | default | allowed | meaning |", "|---|---|---|---|"]
    for name, declared in PARAMETERS.items():
        rows += [f"| **{declared.topic}** | | | |"] if declared.topic else []
        default = f"`{_default(declared.default)}`"
        rows.append(_row(f"`{name}`", default, declared.kind.takes, declared.meaning))
    renamed = [
        f"`{other}` for `{name}`"
        for name, declared in PARAMETERS.items()
        for other in declared.openai
        if other not in PARAMETERS
    ]
    opening = (
        "The parameters of `DecodingParams(...)`, of keywords of `LLM.generate`, of a row of a dataset, and "
        "of `decoding.*` in configurations. What they mean together: [decoding](../decoding.md)."
    )
    names = f"Other names that Python and OpenAI's requests take: {', '.join(renamed)}."
    return "\n\n".join([opening, "\n".join(rows), names])


def _classes() -> str:
    parts = ["What `from mindbatch import ...` gives; [Python](../python.md) shows how it is used."]
    for name, members in CLASSES.items():
        declared = getattr(mindbatch, name)
        parts += [f"## {name}", _prose(declared.__doc__)]
        if name == "LLM":
            parts.append(_constructor(declared))
        for member in members:
            parts += _member(name, member, inspect.getattr_static(declared, member))
    return "\n\n".join(part for part in parts if part)


def _constructor(declared: type) -> str:
    """The keywords of `LLM(...)`, a row each."""
    lines = inspect.getdoc(declared.__init__) or ""
    signature = inspect.signature(declared.__init__)
    rows = ["| keyword | default | meaning |", "|---|---|---|"]
    for found in re.finditer(r"^ *(\w+): (.*)$", lines, re.MULTILINE):
        default = signature.parameters[found[1]].default
        rows.append(_row(f"`{found[1]}`", f"`{default!r}`", found[2]))
    return "\n".join(rows)


def _member(owner: str, name: str, member: Any) -> list[str]:
    if isinstance(member, property):
        return [f"### {owner}.{name}", _prose(member.__doc__)]
    function = member.__func__ if isinstance(member, (classmethod, staticmethod)) else member
    words = ["async " * inspect.iscoroutinefunction(function), f"{name}{_signature(function)}"]
    return [f"### {owner}.{name}", _fenced("".join(words), "python"), _prose(function.__doc__)]


def _signature(function: Any) -> str:
    """As it is written, a parameter on each line where one line is too long."""
    signature = inspect.signature(function)
    lines: list[str] = []
    for each in signature.parameters.values():
        if each.kind is each.KEYWORD_ONLY and "*" not in lines:
            lines.append("*")
        if each.name not in ("self", "cls"):
            lines.append(_parameter(each))
    returns = "" if signature.return_annotation is signature.empty else f" -> {signature.return_annotation}"
    one = f"({', '.join(lines)}){returns}"
    return one if len(one) < 90 else "(\n" + "".join(f"    {line},\n" for line in lines) + f"){returns}"


def _parameter(parameter: inspect.Parameter) -> str:
    """`name: type = default`; annotations are texts, as the package has them."""
    stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
    kind = "" if parameter.annotation is parameter.empty else f": {parameter.annotation}"
    default = "" if parameter.default is parameter.empty else f"{' = ' if kind else '='}{parameter.default!r}"
    return f"{stars}{parameter.name}{kind}{default}"


def _prose(docstring: str | None) -> str:
    """A docstring as Markdown: its entries `name: text` as a list, `Args:` and the like as heads."""
    lines: list[str] = []
    for line in inspect.cleandoc(docstring or "").splitlines():
        entry = _ENTRY.fullmatch(line.strip())
        if line.strip() in _HEADS:
            lines += ["", f"**{line.strip()[:-1]}**", ""]
        elif entry and (line.startswith("    ") or not line.startswith(" ")):
            lines.append(f"- `{entry[1]}`: {_escaped(entry[2])}")
        elif line.startswith("    ") and lines and lines[-1].startswith(("- ", "  ")):
            lines.append(f"  {_escaped(line.strip())}")
        else:
            lines.append(_escaped(line.strip()))
    return _spaced(lines)


def _spaced(lines: list[str]) -> str:
    """A list begins and ends with an empty line."""
    spaced: list[str] = []
    for line in lines:
        in_list = line.startswith(("- ", "  "))
        was_in_list = bool(spaced) and spaced[-1].startswith(("- ", "  "))
        if spaced and spaced[-1] and line and in_list != was_in_list:
            spaced.append("")
        spaced.append(line)
    return re.sub(r"\n{3,}", "\n\n", "\n".join(spaced)).strip("\n")


def _fenced(text: str, language: str) -> str:
    return f"```{language}\n{text}\n```"


def _sentence(text: str) -> str:
    text = text.strip()
    return f"{text[:1].upper()}{_escaped(text[1:])}" + ("" if text.endswith(".") else ".")


def _default(value: Any) -> str:
    if isinstance(value, str):
        return value if value and value == value.strip() else json.dumps(value)
    return f"{value:g}" if isinstance(value, float) else json.dumps(value, default=str)


def _row(*cells: str) -> str:
    return f"| {' | '.join(cell if cell.startswith('`') else _escaped(cell) for cell in cells)} |"


def _escaped(text: str) -> str:
    """A text whose characters mean themselves, but for its `code`."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if part.startswith("`") else re.sub(r"([|*<_])", r"\\\1", part) for part in parts)


if __name__ == "__main__":
    for name, text in pages().items():
        path = Path(sys.argv[1], name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
