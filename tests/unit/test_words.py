"""Names are those of the field: no pronouns for variables, no first line that asks, one class to a name."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "pipeline/mindbatch"
PRONOUNS = {"each", "held", "given", "said", "found", "its", "beside"}
ASKING = re.compile(r"(See|What|Whether|Of|Where)\b")
# Names of several classes, and why.
SHARED_CLASSES = {
    "Attention": "a model file's; the same role in each",
    "Block": "a model file's; the same role in each",
    "Mlp": "a model file's; the same role in each",
    "DeltaNet": "a model file's; the same role in each",
    "SparseMlp": "a model file's; the same role in each",
}


@cache
def modules() -> dict[str, ast.Module]:
    """The modules of the package by their path in it."""
    return {
        path.relative_to(PACKAGE).as_posix(): ast.parse(path.read_text(encoding="utf-8"))
        for path in sorted(PACKAGE.rglob("*.py"))
    }


def bound_names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and name of all that is bound: variables, parameters, fields, exceptions and patterns."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
            yield node.lineno, node.name
        elif isinstance(node, ast.alias) and node.asname:
            yield node.lineno, node.asname


def docstrings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and text of the docstrings of modules, classes and functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and (
            text := ast.get_docstring(node)
        ):
            yield node.body[0].lineno, text


def class_names(tree: ast.AST) -> Iterator[str]:
    return (node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef))


def test_variables_are_called_by_what_they_hold() -> None:
    assert not [
        f"{module}:{line}: {name}"
        for module, tree in modules().items()
        for line, name in bound_names(tree)
        if name in PRONOUNS
    ]


def test_no_docstring_begins_with_a_question() -> None:
    assert not [
        f"{module}:{line}: {text.splitlines()[0]}"
        for module, tree in modules().items()
        for line, text in docstrings(tree)
        if ASKING.match(text)
    ]


def test_a_class_name_stands_for_one_thing() -> None:
    counts = Counter(name for tree in modules().values() for name in class_names(tree))
    assert {name for name, count in counts.items() if count > 1} == SHARED_CLASSES.keys()


def test_the_rules_see_what_they_forbid() -> None:
    code = """
import a as said
for each in x:
    match each:
        case {"a": found}:
            lambda given: found
"""
    assert {name for _, name in bound_names(ast.parse(code))} == {"said", "each", "found", "given"}
    assert [text for _, text in docstrings(ast.parse('def f():\n    """See g."""'))] == ["See g."]
