"""Writes a predict YAML of MindFormers as a configuration file of MindBatch.

    python tools/migrate_predict_yaml.py predict_qwen3.yaml                 # on standard output
    python tools/migrate_predict_yaml.py predict_qwen3.yaml -o qwen3.yaml
    mindbatch generate --config qwen3.yaml prompts='["Hello"]'

A key that has no effect in MindBatch is named in a comment with the reason. Unknown keys and keys that
MindBatch does not support are errors, which are reported together. Nothing in the file is executed. Paths
are copied; they stay relative to the folder in which a command is run, and need not exist here.

`mindbatch ... model.mindformers_yaml=FILE` reads the YAML itself.
"""

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "pipeline"))  # installed or not

import yaml

from mindbatch.config.error_log import ErrorLog
from mindbatch.config.model_task import ModelTaskConfig
from mindbatch.config.paths import output_file_error
from mindbatch.config.predict_yaml.apply import Applied, apply_table
from mindbatch.config.schema import schema_keys
from mindbatch.config.settings import Assignment
from mindbatch.config.validation import Validator
from mindbatch.decoding.params import DecodingParams
from mindbatch.io.errors import EXIT_DONE, ConfigError, MindBatchError
from mindbatch.io.screen_text import data_output, printable, run_tool, say, show
from mindbatch.io.storage import write_whole
from mindbatch.io.tool_parser import ToolParser

NAME = "migrate_predict_yaml.py"


def main(arguments: list[str] | None = None) -> int:
    """Writes the file and returns the exit code (docs/generate.md)."""
    options = parser().parse_args(arguments)
    try:
        target = read_target(options.output)
        applied = migrated(Path(options.file))
        text = config_text(applied)
        if target is None:
            print(text, end="", file=data_output())
            return EXIT_DONE
        write_whole(target, text.encode())
    except MindBatchError as error:
        say(*error.lines, name=NAME)
        return error.exit_code
    say(*applied.details, name=NAME)
    show(printable(f"{target}: for mindbatch TASK --config {target}"))
    return EXIT_DONE


def parser() -> argparse.ArgumentParser:
    """Makes the parser of the command's arguments."""
    result = ToolParser.of_page(NAME, __doc__)
    result.add_argument("file", metavar="FILE", help="predict YAML")
    result.add_argument("-o", "--output", metavar="OUT", help="new file; without it the result is printed")
    return result


def read_target(output: str | None) -> Path | None:
    """Checks the path of the new file. Raises ConfigError if it exists or cannot be written."""
    if output is None:
        return None
    path = Path(output)
    exists = "already exists; use another name" if os.path.lexists(path) else None
    if error := exists or output_file_error(path):
        raise ConfigError(f"--output {output}: {error}")
    return path


_ANY_LENGTH = 1 << 20


def migrated(path: Path) -> Applied:
    """Translates the predict YAML for all tasks that run a model, without checking that folders exist.

    Raises ConfigError with all errors.
    """
    keys = schema_keys(ModelTaskConfig)
    applied = apply_table(path, keys)
    log = ErrorLog()
    for line in applied.errors:
        log.add(line)
    values = Validator(keys, frozenset(), log).typed(dict(applied.settings))
    log.sources = {name: setting.source for name, setting in applied.settings.items()}
    log.add_consequences(_decoding_errors(values))
    log.raise_if_any()
    return applied


def _decoding_errors(values: dict[str, Any]) -> list[str]:
    sections = {name.partition("."): value for name, value in values.items()}
    try:
        DecodingParams(
            **{name: value for (section, _, name), value in sections.items() if section == "decoding"}
        )
    except ConfigError as error:
        return error.lines
    return []


def config_text(applied: Applied) -> str:
    """Writes a line for each key with the YAML's own name, then the keys without effect."""
    lines = [f"# From {printable(applied.path.name)}, a predict YAML of MindFormers."]
    for section in dict.fromkeys(name.partition(".")[0] for name in applied.settings):
        lines.append(f"{section}:")
        own = [setting for name, setting in applied.settings.items() if name.startswith(f"{section}.")]
        lines += [_line(setting, applied.set_by.get(setting.key)) for setting in own]
    if applied.unused:
        lines.append("# Without effect:")
        lines += [f"# - {', '.join(keys)}: {why}" for why, keys in applied.unused.items()]
    return "\n".join([*lines, ""])


def _line(setting: Assignment, name: str | None) -> str:
    comment = f"  # {name}" if name else ""
    return f"  {setting.key.partition('.')[2]}: {_written(setting.value)}{comment}"


def _written(value: Any) -> str:
    if isinstance(value, str):
        return json.dumps(value)
    text = yaml.safe_dump(value, default_flow_style=True, width=_ANY_LENGTH)
    return text.removesuffix("\n").removesuffix("\n...")


if __name__ == "__main__":
    run_tool(main, NAME)
