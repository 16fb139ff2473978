"""Counts how often the package says what a model is: the figures of docs/architecture.md.

    python tools/meters/model_counts.py

Class names that stand for the model, functions that open or describe a model's folder, and how often one
`batch` of three rows describes its model and walks the tree of its layers.
"""

from __future__ import annotations

import ast
import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from mindbatch import cli
from mindbatch.model_spec import registry

PACKAGE = Path(__file__).parents[2] / "pipeline/mindbatch"
WORDS = ("Model", "Architecture", "Description", "Facts", "Outline")
OTHERS = frozenset({"ModelConfig", "ModelTaskConfig", "Facts", "_ModelRuns", "_ModelScope"})
"""Sections of a configuration, what a predict YAML says, the runs of an evaluation, and a hub."""
OPENERS = frozenset({"describe", "open_whole", "ModelFolder", "QuantisedFolder"})


def class_names() -> Iterator[str]:
    """Those of the package that have one of the words, each once."""
    names = {node.name for _, node in nodes() if isinstance(node, ast.ClassDef)}
    yield from sorted(name for name in names - OTHERS if any(word in name for word in WORDS))


def opening_functions() -> Iterator[str]:
    """Functions outside of checkpoint/folders that describe a configuration or open a folder of weights."""
    for path, node in nodes():
        if isinstance(node, ast.FunctionDef) and "checkpoint" not in path.parts:
            calls = (call for call in ast.walk(node) if isinstance(call, ast.Call))
            names = {call.func.id for call in calls if isinstance(call.func, ast.Name)}
            if names & OPENERS:
                yield f"{path.relative_to(PACKAGE)}: {node.name}"


def nodes() -> Iterator[tuple[Path, ast.AST]]:
    """Every node of every module."""
    for path in sorted(PACKAGE.rglob("*.py")):
        yield from ((path, node) for node in ast.walk(ast.parse(path.read_text())))


def counted(function: Callable[..., Any], times: list[str], name: str) -> Callable[..., Any]:
    """The function, which notes each call."""

    def noting(*arguments: Any, **named: Any) -> Any:
        times.append(name)
        return function(*arguments, **named)

    return noting


def calls_of_a_batch() -> tuple[int, int]:
    """How often a batch of three rows describes its model, and walks its tree."""
    times: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "rows.jsonl"
        data.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in ("one", "two", "six")))
        chosen = mock.patch.object(registry, "chosen_type", counted(registry.chosen_type, times, "described"))
        tree = registry.declaration("gpt2").tree
        walk = mock.patch.object(tree, "parameters", counted(tree.parameters, times, "walked"))
        with chosen, walk:
            options = [f"data.path={data}", f"output.dir={folder}/run", "decoding.max_new_tokens=2"]
            cli.main(["batch", "model=tiny_gpt2", *options])
    return times.count("described"), times.count("walked")


def main() -> None:
    """Prints the figures."""
    names, openers = [*class_names()], [*opening_functions()]
    described, walked = calls_of_a_batch()
    print(f"class names for the model: {len(names)}: {', '.join(names)}")
    print(f"functions that open or describe a folder: {len(openers)}", *openers, sep="\n  ")
    print(f"a batch of three rows: describes its model {described} times, walks its tree {walked} times")


if __name__ == "__main__":
    main()
