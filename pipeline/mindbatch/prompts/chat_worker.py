"""Renders templates in a child process, which `chat.ChatProcess` starts.

The answer to {"template": str, "variables": {...}, "date": YYYY-MM-DD or null} is {"text": str}, that to
{"template": str} is {"names": [...]}, the variables that the template reads. Either may be {"error": str}, or
{"needs": str} when memory is exhausted.

The same request has the same answer in every process: the clock shows the date, and random numbers are seeded
by the variables.
"""

import json
import random
from collections.abc import Callable
from datetime import datetime
from functools import lru_cache, partial
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, NoReturn

from mindbatch.io.child_main import serve

if TYPE_CHECKING:
    import jinja2


class OutputTooLong(Exception):
    """The template produced more characters than allowed."""


def main(connection: Connection, seconds: str, memory_bytes: str, max_characters: str, kind: str) -> None:
    """Runs the process; see `child_main.serve` for the limits. kind: chat or data."""
    environment = {"chat": chat_sandbox, "data": data_sandbox}[kind]()
    # Compiling takes far longer than rendering, and nearly every row has the template of the row before.
    compiled = lru_cache(maxsize=8)(environment.from_string)
    answer = partial(
        answer_to,
        environment=environment,
        compiled=compiled,
        memory_bytes=int(memory_bytes),
        max_characters=int(max_characters),
    )
    serve(connection, answer, float(seconds), int(memory_bytes))


def answer_to(
    request: dict[str, Any],
    environment: "jinja2.Environment",
    compiled: "Callable[[str], jinja2.Template]",
    memory_bytes: int,
    max_characters: int,
) -> dict[str, Any]:
    """Returns the rendered text or the template's names, or a reason of one line for any error."""
    try:
        template = compiled(request["template"])
        if "variables" not in request:
            return {"names": names_in(request["template"], environment)}
        variables = request["variables"]
        random.seed(json.dumps(variables, sort_keys=True))  # for the filter random and for lipsum
        return {"text": bounded(template, {**clock_of(request["date"]), **variables}, max_characters)}
    except MemoryError:
        return {"needs": f"more than {memory_bytes >> 20} MiB of memory"}
    except OutputTooLong:
        return {"error": f"produced more than {max_characters} characters"}
    except Exception as error:
        return {"error": one_line(error)}


def bounded(template: "jinja2.Template", variables: dict[str, Any], max_characters: int) -> str:
    """Renders the template; stops as soon as the output exceeds the limit."""
    parts, length = [], 0
    for part in template.generate(variables):
        parts.append(part)
        length += len(part)
        if length > max_characters:
            raise OutputTooLong
    return "".join(parts)


def names_in(template: str, environment: "jinja2.Environment") -> list[str]:
    """Returns the variables that the template reads and does not set, also those of the sandbox."""
    from jinja2 import meta

    bare = environment.overlay()
    bare.globals = {}  # a column may be named range
    return sorted(meta.find_undeclared_variables(bare.parse(template)))


def one_line(error: Exception, limit: int = 300) -> str:
    """Writes the error in one line, without its type if the template raised it on purpose."""
    message = "".join(c if c.isprintable() else " " for c in str(error))
    line = " ".join(message.split())[:limit]
    location = f" in line {error.lineno}" if hasattr(error, "lineno") else ""
    named = type(error).__name__ + location
    return line if named == "TemplateError" and line else f"{named}: {line}" if line else named


def chat_sandbox() -> "jinja2.Environment":
    """Makes an environment with the names that transformers documents for chat templates."""
    from jinja2 import nodes
    from jinja2.ext import Extension
    from jinja2.parser import Parser

    class Generation(Extension):
        """Renders the body of {% generation %}, which marks the assistant's text for training."""

        tags = {"generation"}

        def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.Scope(body).set_lineno(line)

    return _sandbox(Generation, finalize=no_address)


def data_sandbox() -> "jinja2.Environment":
    """Makes an environment for templates over the columns of a row.

    A missing column is an error, not an empty text, and so is a null, which would be written as "None". It
    has no clock and no random numbers, so that a resumed run makes the same row.
    """
    from jinja2 import StrictUndefined

    environment = _sandbox(undefined=StrictUndefined, finalize=not_null)
    del environment.filters["random"], environment.globals["lipsum"]
    return environment


def _sandbox(*extensions: Any, **options: Any) -> "jinja2.Environment":
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=["jinja2.ext.loopcontrols", *extensions],
        **options,
    )
    environment.filters["tojson"] = to_json
    environment.globals["raise_exception"] = raise_exception
    return environment


def raise_exception(message: object) -> NoReturn:
    """Lets a template refuse its input with a message of its own."""
    from jinja2 import TemplateError

    raise TemplateError(str(message))


def not_null(value: object) -> object:
    if value is None:
        raise_exception("a value is null; write {{ name or '' }} to allow it")
    return no_address(value)


def no_address(value: object) -> object:
    """Refuses values that are written with their memory address, which differs between processes."""
    if not isinstance(value, str | int | float | list | dict) and " at 0x" in str(value):
        raise_exception(f"writes a {type(value).__name__} itself; write its result, or {{{{ ... | list }}}}")
    return value


def to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: Any = None,
    separators: Any = None,
    sort_keys: bool = False,
) -> str:
    """Writes plain JSON, because jinja2's own filter escapes it for HTML."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def clock_of(date: str | None) -> dict[str, Callable[[str], str]]:
    """Returns transformers' strftime_now for the start of the day, or nothing without a date."""
    return {} if date is None else {"strftime_now": datetime.fromisoformat(date).strftime}
