"""EXECUTE_ORDER: a command line given as one argument, split as a shell splits it and never evaluated."""

import os
import shlex
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from mindbatch.io.error_lines import shown, text_override, texts_override

Kind = Literal["mindbatch", "generate_custom", "other"]

_GENERATE_CUSTOM = Path(__file__).resolve().parents[4] / "tools/generate_custom.py"
# How MindBatch's begins: a light installation or a wheel has no file of the checkout to compare with.
_ITS_FIRST_LINE = (
    b"Generates text with the flags of MindFormers' generate_custom.py, by way of `mindbatch generate`."
)
_PROMPT_TASKS = ("generate", "compare")
_PROMPT_KEYS = ("prompts", "prompts_file", "messages", "interactive")
_PYTHONS = ("python", "python3")
_INPUT_FLAG = "--input_data"


@dataclass(frozen=True)
class ExecuteOrder:
    """A program and its arguments; one of kind "other" is run once for each rank."""

    program: tuple[str, ...]
    arguments: tuple[str, ...]
    kind: Kind = "other"

    @property
    def words(self) -> tuple[str, ...]:
        return self.program + self.arguments

    @property
    def starts_its_ranks(self) -> bool:
        """True if it is to be run once, whatever the number of ranks."""
        return self.kind != "other"

    def beginning_with(self, *further: str) -> "ExecuteOrder":
        """Puts arguments before those that the user gave."""
        return replace(self, arguments=(*further, *self.arguments))


def read_order(text: str, errors: list[str]) -> ExecuteOrder:
    """Reads the command in `text`; its errors are appended to `errors`.

    `mindbatch` is run by this Python, and NAME.py by python, as msrun does it.
    """
    try:
        words = shlex.split(text)
    except ValueError as error:
        errors.append(f"EXECUTE_ORDER {shown(text)}: {str(error).lower()}; it is split as a shell would")
        return ExecuteOrder((), ())
    if not words:
        errors.append("EXECUTE_ORDER: holds no command")
        return ExecuteOrder((), ())
    order = _recognised(words)
    problems = [*_program_errors(order.program[0]), *_file_errors(order)]
    errors += [f"EXECUTE_ORDER {shown(text)}: {problem}" for problem in problems]
    return order


def _recognised(words: Sequence[str]) -> ExecuteOrder:
    first, *rest = words
    if first == "mindbatch":
        return ExecuteOrder((sys.executable, "-I", "-m", "mindbatch"), tuple(rest), "mindbatch")
    if Path(first).name == "mindbatch":
        return ExecuteOrder((first,), tuple(rest), "mindbatch")
    if first.endswith(".py"):
        return _recognised(["python", *words])
    if first in _PYTHONS:
        return _recognised([_python(first), *rest])
    if rest[:2] == ["-m", "mindbatch"]:
        return ExecuteOrder((first, *rest[:2]), tuple(rest[2:]), "mindbatch")
    if rest and _is_generate_custom(rest[0]):
        return ExecuteOrder((sys.executable, "-I", rest[0]), tuple(rest[1:]), "generate_custom")
    return ExecuteOrder((first,), tuple(rest))


def _python(name: str) -> str:
    """Finds the Python that the user has named for the script, else that of PATH, else ours."""
    named = sys.executable if os.environ.get("PYTHON") else shutil.which(name)
    return named or sys.executable


def _is_generate_custom(word: str) -> bool:
    """True if `word` is the path of MindBatch's tools/generate_custom.py, or of a copy of it."""
    if Path(word).name != _GENERATE_CUSTOM.name or not os.path.isfile(word):
        return False
    try:
        with open(word, "rb") as file:
            return _ITS_FIRST_LINE in file.readline(200)
    except OSError:  # Python will say so
        return False


def _program_errors(program: str) -> Iterator[str]:
    if shutil.which(program) is None:
        name, equals, _ = program.partition("=")
        is_variable = equals and name.isidentifier()
        hint = f"; set variables before the script: export {program}" if is_variable else ""
        yield f"{shown(program)} is no program{hint}"


def _file_errors(order: ExecuteOrder) -> Iterator[str]:
    """Checks that the file is there that a Python is to run."""
    first = next(iter(order.arguments), "")
    is_python = Path(order.program[0]).name.startswith("python")
    if not (is_python and first.endswith(".py")) or os.path.exists(first):
        return
    is_custom = Path(first).name == _GENERATE_CUSTOM.name
    hint = f"; this project's is {_own_generate_custom()}" if is_custom else ""
    yield f"{shown(first)}: no such file{hint}"


def _own_generate_custom() -> str:
    """Names generate_custom.py: its path in the checkout, or how it is called in a wheel, which lacks it."""
    own = _GENERATE_CUSTOM
    return shlex.quote(str(own)) if own.exists() else "tools/generate_custom.py of its checkout"


def with_input(order: ExecuteOrder, data: str | None, notes: list[str], errors: list[str]) -> ExecuteOrder:
    """Adds INPUT_DATA, if it is set, to the order; a note tells which program of two names is run.

    Other programs get `--input_data` and the text at their end; mindbatch gets it as its prompt, or as the
    file of its prompts where it is the path of one.
    """
    if order.kind == "other" and any(Path(word).name == _GENERATE_CUSTOM.name for word in order.words):
        notes.append(f"{_GENERATE_CUSTOM.name} is not MindBatch's: it is run on each rank, as it is")
    if not data:
        return order
    if order.kind == "other":
        return replace(order, arguments=(*order.arguments, _INPUT_FLAG, data))
    if order.kind == "generate_custom":
        return order.beginning_with(f"{_INPUT_FLAG}={data}")
    if not any(task in order.arguments for task in _PROMPT_TASKS):
        notes.append(f"INPUT_DATA: has no effect; only mindbatch {' and '.join(_PROMPT_TASKS)} take it")
        return order
    prompt_keys = [key for key in _keys(order) if key in _PROMPT_KEYS]
    errors += [
        f"INPUT_DATA and {key}= in EXECUTE_ORDER: only one of them can be given" for key in prompt_keys
    ]
    is_file = os.path.isfile(data)
    prompts = text_override("prompts_file", data) if is_file else texts_override("prompts", [data])
    return order.beginning_with(prompts)


def with_launch(
    order: ExecuteOrder, script: str, values: Mapping[str, str | int], errors: list[str]
) -> ExecuteOrder:
    """Adds `launch.KEY=VALUE` for each value to an order of ours, which must not set one itself."""
    keys = _keys(order)
    names = {key: "launch" if key == "launcher" else f"launch.{key}" for key in values}
    errors += [f"EXECUTE_ORDER: {name}= is given by {script}" for name in names.values() if name in keys]
    written = (
        text_override(f"launch.{key}", value) if isinstance(value, str) else f"launch.{key}={value}"
        for key, value in values.items()
    )
    return order.beginning_with(*written)


def _keys(order: ExecuteOrder) -> Iterable[str]:
    return [word.partition("=")[0].lstrip("+") for word in order.arguments if "=" in word]
