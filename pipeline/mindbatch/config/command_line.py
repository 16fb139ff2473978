"""Reads a command line into settings: JSON, literal texts, and all else in Hydra's grammar."""

import os
import re
import shlex
from collections import Counter
from collections.abc import Iterator
from itertools import takewhile
from typing import Any

from antlr4 import CommonTokenStream, InputStream, ParserRuleContext  # type: ignore[import-untyped]
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from hydra.grammar.gen.OverrideLexer import OverrideLexer
from hydra.grammar.gen.OverrideParser import OverrideParser

from mindbatch.config.error_log import ErrorLog, shown
from mindbatch.config.layers import OUTPUT_FOLDER, Assignment, Choice, Layer, LayerReader
from mindbatch.config.paths import LONGEST_SHOWN
from mindbatch.config.schema import TaskConfig
from mindbatch.io.error_lines import literal
from mindbatch.io.strict_json import JsonError, StrictReader, value_errors

MODEL_FOLDER = "model.checkpoint_name_or_path"
FOLDER_KEYS = (OUTPUT_FOLDER, "hydra.run.dir", "hydra.sweep.dir")
"""The key of the folder of outputs, and Hydra's own keys for it."""
LONGEST_ECHO = 200
"""Limit of characters of a value that a hint repeats."""

_DEEPEST = 100
"""Limit of nested lists and mappings in JSON, the same as for JSON schemas."""
_READER = StrictReader()
_PARSER = OverridesParser.create()
_NO_ASCII = re.compile(r"[^\x00-\x7f]")
_QUOTED = re.compile(r"'([^'\\]*)'")
_QUOTED_TEXTS = re.compile(rf"\[\s*{_QUOTED.pattern}(?:\s*,\s*{_QUOTED.pattern})*\s*\]")


def read_command_line(
    arguments: list[str], schema: type[TaskConfig], reader: LayerReader, log: ErrorLog
) -> Layer:
    """Reads a command line in its order, positional words first; errors go to `log`."""
    words, tokens = _positional(arguments, schema, log)
    layer = Layer(words)
    for number, token in enumerate(tokens):
        if not _is_stray(token):
            layer.add(_read_one(token, reader, log))
        elif number == 0 or not _is_stray(tokens[number - 1]):
            log.add(_stray_words(tokens, number, reader))
    return layer


def json_value(token: str) -> Any:
    """Parses a value that is a JSON text, list or object, or a list of texts in single quotes; else None.

    Hydra's grammar reads most of these, but without escapes, so that "\\n" is a backslash and an n. Its time
    grows with the square of the length of a list.
    """
    name, _, written = token.partition("=")
    if name.startswith("~") or "@" in name or written.lstrip()[:1] not in ("[", "{", '"'):
        return None
    if _QUOTED_TEXTS.fullmatch(written.strip()) and "${" not in written:
        return _QUOTED.findall(written)
    try:
        return _READER.parse(written)
    except JsonError:
        return None


def key_of(token: str) -> str:
    """Returns the key of an override. `+key` and `++key` mean `key`: the schema decides what exists."""
    return token.partition("=")[0].lstrip("+~").partition("@")[0]


def _positional(
    arguments: list[str], schema: type[TaskConfig], log: ErrorLog
) -> tuple[list[Assignment], list[str]]:
    """Converts the words among `arguments` to settings of positional keys; returns the rest as well.

    A word has no `=`, or a slash before it, as a path may have and a key has not. It is a literal text.
    """
    if not schema.positional and not schema.positional_rest:
        return [], arguments
    words = [argument for argument in arguments if _is_word(argument)]
    rest = [argument for argument in arguments if not _is_word(argument)]
    names = schema.positional
    settings = [Assignment(name, literal(word)) for name, word in zip(names, words, strict=False)]
    further = words[len(names) :]
    if further and schema.positional_rest:
        settings.append(Assignment(schema.positional_rest, [literal(word) for word in further]))
    elif further:
        for extra in further:
            log.add(f"{shown(extra)}: one too many; only {', '.join(names)} may be given without key=")
    keys = {argument.partition("=")[0].strip() for argument in rest}
    for name, word in zip((*names, schema.positional_rest), words, strict=False):
        if name in keys:
            log.add(f"{name}: given twice, as {shown(word, LONGEST_SHOWN)} and as {name}=", name)
    return settings, rest


def _is_word(argument: str) -> bool:
    key, equals, _ = argument.partition("=")
    return not argument.startswith("~") and (not equals or "/" in key)


def _is_stray(token: str) -> bool:
    return "=" not in token and not token.startswith("~")


def _stray_words(tokens: list[str], first: int, reader: LayerReader) -> str:
    """Words the error of successive words without a key, most often a text that needs quotes in the shell."""
    words = [*takewhile(_is_stray, tokens[first:])]
    error = f"{shown(' '.join(words))}: must be KEY=VALUE"
    before = tokens[first - 1] if first else ""
    whole, key = " ".join([before, *words]), key_of(before)
    if (key == "prompts" or reader.takes_text(key)) and _is_plain(before) and len(whole) <= LONGEST_ECHO:
        return f"{error}; a text with spaces is quoted: {shlex.quote(whole)}"
    is_model = len(words) == 1 and reader.knows(MODEL_FOLDER) and os.path.isfile(f"{words[0]}/config.json")
    return f"{error}; a model's folder is given as {MODEL_FOLDER}={words[0]}" if is_model else error


def _read_one(token: str, reader: LayerReader, log: ErrorLog) -> Layer:
    key = key_of(token)
    if not key:
        log.add(f"{shown(token)}: has no key; write key=value")
        return Layer()
    if key in FOLDER_KEYS[1:] and reader.knows(OUTPUT_FOLDER):
        return _read_one(OUTPUT_FOLDER + token.partition(key)[2], reader, log)
    as_text = reader.takes_text(key, token.partition("=")[2].strip()) and not token.startswith("~")
    if not as_text and (value := json_value(token)) is not None:
        errors = value_errors(value, key, _DEEPEST)
        for line in errors:
            log.add(line, key)
        return Layer() if errors else reader.read(key, value)
    is_plain = as_text and _is_plain(token)
    try:
        override = _PARSER.parse_override(token)
        if is_plain and override.is_sweep_override():  # a comma
            return reader.read(key, token.partition("=")[2])
        if override.is_sweep_override() and reader.takes_list(key):  # a comma, too
            return reader.read(key, [name.strip() for name in token.partition("=")[2].split(",")])
        if override.is_sweep_override():
            error: str | None = f"several values need --multirun; for one value, {_quoting_hint(token)}"
        elif override.is_delete() or override.package is not None:
            return _structural(override, token, reader, log)
        elif not as_text and (name := repeated_name(token)) is not None:
            error = f"{shown(name)} is given twice"
        else:
            written = token if token.startswith("+") else ""
            return reader.read(key, _value(override, token, as_text), override=written)
    except (HydraException, ValueError, RecursionError):  # the last two: absurdly long numbers, deep nesting
        if is_plain:
            return reader.read(key, token.partition("=")[2])
        if not reader.knows(key):
            return reader.read(key, None)
        if (text := _beyond_ascii(token)) is not None:
            return reader.read(key, text)
        error = f"cannot be read; {_quoting_hint(token, as_text)}"
    log.add(f"{shown(token)}: {error}", key)
    return Layer()


def _structural(override: Override, token: str, reader: LayerReader, log: ErrorLog) -> Layer:
    """Reads `~group`, `~key` and `group@package=option`."""
    key = override.key_or_group
    if key in reader.groups and (override.is_delete() or isinstance(override.value(), str)):
        return Layer(choices=[Choice(key, "" if override.is_delete() else str(override.value()), token)])
    if override.package is not None:
        log.add(
            f"{shown(token)}: {shown(key)} is no group; only the option of a group has a package (@)", key
        )
    elif override.value() is not None:
        log.add(f"{shown(token)}: write ~{key}, without a value, for its default", key)
    else:
        return reader.defaults_of(key)
    return Layer()


def _value(override: Override, token: str, as_text: bool) -> Any:
    """Returns the value of an override, or its literal text if Hydra reads another type where a text is due.

    As texts, 2024_11 and 1e3 are names, and [abc] and \\(a\\) are regular expressions.
    """
    value, written = override.value(), token.partition("=")[2].strip()
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    is_escaped = isinstance(value, str) and "\\" in written and _is_plain(token)
    to_the_letter = is_number or is_escaped or (isinstance(value, list | dict) and "${" not in written)
    return written if as_text and to_the_letter else value


def _beyond_ascii(token: str) -> str | None:
    """Returns the literal value if only letters beyond ASCII keep Hydra's grammar from reading it: 你好."""
    name, _, written = token.partition("=")
    plain = _NO_ASCII.sub("x", written)
    if plain == written:
        return None
    try:
        override = _PARSER.parse_override(f"{name}={plain}")
    except HydraException:
        return None
    is_text = not override.is_sweep_override() and isinstance(override.value(), str)
    return written.strip() if is_text and _is_plain(token) else None


def _is_plain(token: str) -> bool:
    """True if a value may be a literal text even though Hydra's grammar does not read it as one.

    Examples are Q: {{ question }}, and texts with commas. Quoted values and references are none.
    """
    value = token.partition("=")[2].strip()
    return value[:1] not in ('"', "'") and "${" not in value


def _quoting_hint(token: str, as_text: bool = False) -> str:
    """Explains how to quote the value for both the shell and Hydra."""
    key, _, value = token.partition("=")
    looks_nested = value[:1] in ('"', "'") or (value[:1] in ("[", "{") and not as_text)
    if len(value) > LONGEST_ECHO or looks_nested:
        return """check the brackets and quotes, for example prompts='["One, two", "It is"]'"""
    text = '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    if key.lstrip("+") == "prompts":
        text = f"[{text}]"
    return f"quote a text that holds commas or special characters: {key}={shlex.quote(text)}"


def repeated_name(override: str) -> str | None:
    """Finds the first name that a mapping within a valid override has twice; None if there is none."""
    if "{" not in override:
        return None
    parser: Any = OverrideParser(CommonTokenStream(OverrideLexer(InputStream(override))))
    return next(_repeated_names(parser.override()), None)


def _repeated_names(tree: Any) -> Iterator[str]:
    if isinstance(tree, OverrideParser.DictContainerContext):
        counts = Counter(pair.dictKey().getText().strip() for pair in tree.dictKeyValuePair())
        yield from (name for name, count in counts.items() if count > 1)
    for child in tree.getChildren() if isinstance(tree, ParserRuleContext) else ():
        yield from _repeated_names(child)
