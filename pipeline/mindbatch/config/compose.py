"""Composition of a task's configuration: its own file, then --config, then the words of the command line.

The words are read one by one, as JSON or in Hydra's grammar, so that every fault is found.
"""

import os
import pickle
import re
import shlex
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain, takewhile
from pathlib import Path
from typing import Any, Protocol

from hydra import compose, initialize_config_dir
from hydra.conf import HydraConf
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf

from mindbatch.config import paths
from mindbatch.config.composition import Composition, assign
from mindbatch.config.continued import read_saved
from mindbatch.config.faults import FaultLog, shown
from mindbatch.config.options import OptionFiles, OptionReader
from mindbatch.config.path_faults import LONGEST_SHOWN
from mindbatch.config.predict_yaml.key import PREDICT_YAML, take_out
from mindbatch.config.repeated_names import repeated_name
from mindbatch.config.schema import SchemaKeys, TaskConfig, schema_keys
from mindbatch.config.settings import Assignment, Choice, Listing, Setting, SettingReader
from mindbatch.override_text import literal
from mindbatch.strict_json import JsonFault, StrictReader, first_unicode_fault

HYDRA_VERSION_BASE = "1.3"

MODEL_FOLDER = "model.checkpoint_name_or_path"
LONGEST_ECHO = 200
"""Characters of a value that are worth repeating in a hint."""

_READER = StrictReader()
_NO_ASCII = re.compile(r"[^\x00-\x7f]")
_QUOTED = re.compile(r"'([^'\\]*)'")
_QUOTED_TEXTS = re.compile(rf"\[\s*{_QUOTED.pattern}(?:\s*,\s*{_QUOTED.pattern})*\s*\]")
_DEFAULTS: dict[type[TaskConfig], bytes] = {}


class Composed(Protocol):
    """Task as it is known here: its name, which its shipped file has too, and the schema of its keys."""

    @property
    def name(self) -> str: ...

    @property
    def schema(self) -> type[TaskConfig]: ...


def compose_task(
    task: Composed,
    overrides: list[str],
    config_file: Path | None = None,
    config_dir: Path | None = None,
) -> Composition:
    """Composes `task` from its shipped file, --config file and overrides, with the options of --config-dir.

    A task that continues a run begins with the configuration saved there, and without one raises ConfigError.
    Where a task takes a list of options, what is given beside the list goes for each of them.
    Faults are noted in the composition's log; what is at fault is left out of its tree.
    """
    log, schema = FaultLog(), task.schema
    keys = schema_keys(schema)
    options = OptionFiles(paths.configs_folder(), config_dir)
    options.check_folder(log)
    reader = SettingReader(keys, options.groups, log, schema.listed_group)
    in_file = reader.read_file(config_file) if config_file else []
    words, tokens = _read_words(overrides, schema, log)
    layers = [in_file, words + _read_overrides(tokens, reader, log)]
    if schema.continues_run:
        layers.insert(0, read_saved([*chain(*layers)], reader, log))

    contents = _chosen_options([*chain(*layers)], schema, keys, options, log)
    notes = _lay_predict_yaml(layers, contents, schema, keys, log)
    tree = _compose_with_hydra(task, list(contents), options)
    listing = _last_listing([*chain(*layers)], schema)
    variants = {}
    for choice in listing.choices if listing else ():
        content = _chosen_options([choice], schema, keys, options, log)
        if content:
            variants[choice.option] = _laid(tree.copy(), [[choice], *layers], contents | content, keys, log)
    _laid(tree, layers, contents, keys, log)
    given = frozenset(setting.key for setting in _assignments([*chain(*layers)]))
    chosen = [choice.option for choice in contents if choice.group == "decoding"]
    decoding = chosen[-1] if chosen else None
    return Composition(schema, keys, tree, log, listing, variants, given, decoding, notes)


def _lay_predict_yaml(
    layers: list[list[Setting]],
    contents: dict[Choice, list[Assignment]],
    schema: type[TaskConfig],
    keys: SchemaKeys,
    log: FaultLog,
) -> tuple[str, ...]:
    """Puts the settings of a predict YAML, if one is given, below all layers; returns lines for the user."""
    written = take_out(contents.values(), layers)
    if written is None:
        return ()
    if schema.continues_run:
        log.add(f"{PREDICT_YAML}: the run that is continued holds what came of its predict YAML; remove it")
        return ()
    from mindbatch.config.predict_yaml.layer import predict_layer  # the table: most runs have no such file

    settings, notes = predict_layer(written, layers, contents, schema, keys, log)
    layers.insert(0, [*settings])
    layers.append([Assignment(PREDICT_YAML, None, "")])  # an option's file may have it, which Hydra reads
    return tuple(notes)


def _last_listing(settings: list[Setting], schema: type[TaskConfig]) -> Listing | None:
    """The list of options that counts; the schema's where none is given, None where the task takes none."""
    if not schema.listed_group:
        return None
    default = Listing(schema.listed_group, schema.listed_options, "")
    return [default, *(setting for setting in settings if isinstance(setting, Listing))][-1]


def _laid(
    tree: DictConfig,
    layers: Iterable[list[Setting]],
    contents: dict[Choice, list[Assignment]],
    keys: SchemaKeys,
    log: FaultLog,
) -> DictConfig:
    """`tree` with the layers laid upon it, one after the other."""
    for layer in layers:
        for choice in _choices(layer):  # what an option sets goes before the layers below, as plain values do
            assign(tree, contents.get(choice, []), keys, log)
        assign(tree, _assignments(layer), keys, log)
    return tree


def _chosen_options(
    settings: list[Setting],
    schema: type[TaskConfig],
    keys: SchemaKeys,
    options: OptionFiles,
    log: FaultLog,
) -> dict[Choice, list[Assignment]]:
    """The last choice for each group with what its option sets; options with a fault are left out."""
    last = {choice.group: choice for choice in _choices(settings) if options.exists(choice, log)}
    contents = {}
    for choice in last.values():
        trial = FaultLog()
        content = OptionReader(options, keys, trial).read(choice)
        assign(_defaults(schema), content, keys, trial)
        log.merge(trial, choice.group)
        if not trial.lines:
            contents[choice] = content
    return contents


def _defaults(schema: type[TaskConfig]) -> DictConfig:
    """The tree of a schema's defaults; pickle brings it back in a thirtieth of the time of making it anew."""
    if schema not in _DEFAULTS:
        _DEFAULTS[schema] = pickle.dumps(OmegaConf.structured(schema))
    tree: DictConfig = pickle.loads(_DEFAULTS[schema])
    return tree


def _compose_with_hydra(task: Composed, choices: list[Choice], options: OptionFiles) -> DictConfig:
    """The tree of the task's file with the chosen options. Everything that is read was checked before."""
    store = ConfigStore.instance()
    store.store(name=f"{task.name}_schema", node=_defaults(task.schema))
    overrides = [f"{choice.group}={choice.option}" for choice in choices]
    if options.added and options.added.is_dir():
        overrides.append(f"hydra.searchpath=[{_quoted(f'file://{options.added.resolve()}')}]")
    shipped = initialize_config_dir(str(options.shipped), version_base=HYDRA_VERSION_BASE)
    with _without_what_hydra_runs_programs_with(), shipped:
        return compose(task.name, overrides=overrides)


@contextmanager
def _without_what_hydra_runs_programs_with() -> Iterator[None]:
    """Composes without Hydra's own launchers, loggers and help, which take half of the time.

    They are there again afterwards: the process may be a program of Hydra.
    """
    store, name = ConfigStore.instance(), "config.yaml"
    own = store.repo["hydra"][name]
    store.store(group="hydra", name=name, node=HydraConf(defaults=[]), provider="hydra")
    try:
        yield
    finally:
        store.repo["hydra"][name] = own


def _quoted(text: str) -> str:
    """`text` as a quoted value of Hydra's grammar."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _choices(settings: list[Setting]) -> list[Choice]:
    return [setting for setting in settings if isinstance(setting, Choice)]


def _assignments(settings: list[Setting]) -> list[Assignment]:
    return [setting for setting in settings if isinstance(setting, Assignment)]


def _read_words(
    arguments: list[str], schema: type[TaskConfig], log: FaultLog
) -> tuple[list[Setting], list[str]]:
    """The settings that the words among `arguments` stand for, and the other arguments.

    A word has no `=`, or is a path that has one: no key has a slash. It is taken to the letter.
    """
    if not schema.positional and not schema.positional_rest:
        return [], arguments
    words = [argument for argument in arguments if _is_word(argument)]
    rest = [argument for argument in arguments if not _is_word(argument)]
    names = schema.positional
    settings: list[Setting] = [
        Assignment(name, literal(word), "") for name, word in zip(names, words, strict=False)
    ]
    further = words[len(names) :]
    if further and schema.positional_rest:
        settings.append(Assignment(schema.positional_rest, [literal(word) for word in further], ""))
    elif further:
        for extra in further:
            log.add(f"{shown(extra)}: one too many; only {', '.join(names)} may be given without key=")
    _refuse_repeated(settings, words, rest, log)
    return settings, rest


def _refuse_repeated(settings: list[Setting], words: list[str], rest: list[str], log: FaultLog) -> None:
    """A key that is given as a word is not to be given once more."""
    keys = {argument.partition("=")[0].strip() for argument in rest}
    for setting, word in zip(settings, words, strict=False):
        if isinstance(setting, Assignment) and setting.key in keys:
            name = setting.key
            log.add(f"{name}: given twice, as {shown(word, LONGEST_SHOWN)} and as {name}=", name)


def _is_word(argument: str) -> bool:
    key, equals, _ = argument.partition("=")
    return not equals or "/" in key


def _read_overrides(tokens: Iterable[str], reader: SettingReader, log: FaultLog) -> list[Setting]:
    """The settings of the command line in the order given; the overrides at fault go to `log`."""
    parser, given = OverridesParser.create(), [*tokens]
    settings: list[Setting] = []
    for number, token in enumerate(given):
        if not _is_stray(token):
            settings += _read_one(token, parser, reader, log)
        elif number == 0 or not _is_stray(given[number - 1]):
            log.add(_stray_words(given, number, reader))
    return settings


def _is_stray(token: str) -> bool:
    return "=" not in token and not token.startswith("~")


def _stray_words(tokens: list[str], first: int, reader: SettingReader) -> str:
    """The fault of successive words that have no key: most often a text that was not quoted for the shell."""
    words = [*takewhile(_is_stray, tokens[first:])]
    fault = f"{shown(' '.join(words))}: must be KEY=VALUE"
    before = tokens[first - 1] if first else ""
    whole, key = " ".join([before, *words]), _key_of(before)
    if (key == "prompts" or reader.takes_text(key)) and _is_plain(before) and len(whole) <= LONGEST_ECHO:
        return f"{fault}; a text with spaces is quoted: {shlex.quote(whole)}"
    is_model = len(words) == 1 and reader.knows(MODEL_FOLDER) and os.path.isfile(f"{words[0]}/config.json")
    return f"{fault}; a model's folder is given as {MODEL_FOLDER}={words[0]}" if is_model else fault


def _read_one(token: str, parser: OverridesParser, reader: SettingReader, log: FaultLog) -> list[Setting]:
    key = _key_of(token)
    if not key:
        log.add(f"{shown(token)}: has no key; write key=value")
        return []
    as_text = reader.takes_text(key)
    if not as_text and (value := _json_value(token)) is not None:
        if first_unicode_fault(value) is None:
            return list(reader.read(key, value))
        log.add(f"{shown(token)}: holds half a surrogate pair, which is no character", key)
        return []
    is_plain = as_text and _is_plain(token)
    try:
        override = parser.parse_override(token)
        if is_plain and override.is_sweep_override():  # a comma
            return list(reader.read(key, token.partition("=")[2]))
        if override.is_sweep_override() and reader.takes_list(key):  # a comma, too
            return list(reader.read(key, [name.strip() for name in token.partition("=")[2].split(",")]))
        fault = _refusal(override, token)
        if fault is None and not as_text and (name := repeated_name(token)) is not None:
            fault = f"{shown(name)} is given twice"
        if fault is None:
            return list(reader.read(key, _value(override, token, as_text)))
    except (HydraException, ValueError, RecursionError):  # the last two: absurdly long numbers, deep nesting
        if is_plain:
            return list(reader.read(key, token.partition("=")[2]))
        if not reader.knows(key):
            return list(reader.read(key, None))
        if (written := _beyond_ascii(parser, token)) is not None:
            return list(reader.read(key, written))
        fault = f"cannot be read; {_quoting_hint(token, as_text)}"
    log.add(f"{shown(token)}: {fault}", key)
    return []


def _value(override: Override, token: str, as_text: bool) -> Any:
    """The value; what was written, where that is a text and Hydra's grammar makes something else of it:
    2024_11 and 1e3 are names, [abc] and \\(a\\) regular expressions.
    """
    value, written = override.value(), token.partition("=")[2].strip()
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    is_escaped = isinstance(value, str) and "\\" in written and _is_plain(token)
    to_the_letter = is_number or is_escaped or (isinstance(value, list | dict) and "${" not in written)
    return written if as_text and to_the_letter else value


def _beyond_ascii(parser: OverridesParser, token: str) -> str | None:
    """The value as it is written, where Hydra's grammar misses only letters beyond ASCII in it: 你好."""
    name, _, written = token.partition("=")
    plain = _NO_ASCII.sub("x", written)
    if plain == written:
        return None
    try:
        override = parser.parse_override(f"{name}={plain}")
    except HydraException:
        return None
    is_text = not override.is_sweep_override() and isinstance(override.value(), str)
    return written.strip() if is_text and _is_plain(token) else None


def _json_value(token: str) -> Any:
    """The value, if it is a JSON text, list or object, or a list of texts in single quotes; None if not.

    Hydra's grammar takes most of them too, but knows no escapes: "\\n" is a backslash and an n there. And it
    takes time that grows with the square of a list.
    """
    name, _, written = token.partition("=")
    if name.startswith("~") or "@" in name or written.lstrip()[:1] not in ("[", "{", '"'):
        return None
    if _QUOTED_TEXTS.fullmatch(written.strip()) and "${" not in written:
        return _QUOTED.findall(written)
    try:
        return _READER.parse(written)
    except JsonFault:
        return None


def _refusal(override: Override, token: str) -> str | None:
    """Explains why a well-formed override is not taken; None when it is."""
    if override.is_delete():
        return "a key cannot be deleted; set it to another value"
    if override.is_sweep_override():
        return f"several values for one key are not taken; {_quoting_hint(token)}"
    if override.package is not None:
        return "packages (@) are not supported; write group=option or key=value"
    return None


def _is_plain(token: str) -> bool:
    """True if a text that Hydra's grammar reads as something else, or not at all, is meant to the letter:
    Q: {{ question }}, or one with commas.

    Not where the user has begun to quote it, and not where it may be meant as a reference.
    """
    value = token.partition("=")[2].strip()
    return value[:1] not in ('"', "'") and "${" not in value


def _quoting_hint(token: str, as_text: bool = False) -> str:
    """Explains how to write the value so that the shell and Hydra both take it as one text."""
    key, _, value = token.partition("=")
    looks_nested = value[:1] in ('"', "'") or (value[:1] in ("[", "{") and not as_text)
    if len(value) > LONGEST_ECHO or looks_nested:
        return """check the brackets and quotes, for example prompts='["One, two", "It is"]'"""
    text = '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    if key.lstrip("+") == "prompts":
        text = f"[{text}]"
    return f"quote a text that holds commas or special characters: {key}={shlex.quote(text)}"


def _key_of(token: str) -> str:
    """The key of an override: `+key` and `++key` mean `key`, for the schema decides what exists."""
    return token.partition("=")[0].lstrip("+~").partition("@")[0]
