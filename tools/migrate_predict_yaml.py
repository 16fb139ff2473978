"""Writes a predict YAML of MindFormers as a configuration file of MindBatch.

    python tools/migrate_predict_yaml.py predict_qwen3.yaml                 # on standard output
    python tools/migrate_predict_yaml.py predict_qwen3.yaml -o qwen3.yaml
    mindbatch generate --config qwen3.yaml prompts='["Hello"]'

Each key of the YAML is used, or is named in a comment with the reason why it has no effect; a key that is
unknown, or asks for what MindBatch cannot do, is refused, all at once. Nothing in the file is run. Paths stay
as they are, relative to the folder that a command is given in, and need not exist here.

`mindbatch ... model.mindformers_yaml=FILE` takes the YAML itself.
"""

import argparse
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "pipeline"))  # installed or not

from mindbatch.config.path_faults import output_file_fault
from mindbatch.config.predict_yaml.config_file import config_text, migrated
from mindbatch.io.errors import EXIT_DONE, ConfigError, MindBatchError
from mindbatch.io.screen_text import data_output, printable, say, show
from mindbatch.io.standard_streams import run_tool
from mindbatch.io.storage import write_whole
from mindbatch.io.tool_parser import ToolParser

NAME = "migrate_predict_yaml.py"


def main(arguments: list[str] | None = None) -> int:
    """Writes the file; the exit code is 0, 1 (failed) or 2 (wrong usage, or a YAML that is refused)."""
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
        say(*error.faults, name=NAME)
        return error.exit_code
    say(*applied.notes, name=NAME)
    show(printable(f"{target}: for mindbatch TASK --config {target}"))
    return EXIT_DONE


def parser() -> argparse.ArgumentParser:
    """A file to read, and one to write."""
    result = ToolParser.of_page(NAME, __doc__)
    result.add_argument("file", metavar="FILE", help="predict YAML")
    result.add_argument("-o", "--output", metavar="OUT", help="file to make; standard output")
    return result


def read_target(output: str | None) -> Path | None:
    """The file to make. Raises ConfigError where it is there already or cannot be written."""
    if output is None:
        return None
    path = Path(output)
    there = "is there already; give another name" if os.path.lexists(path) else None
    if fault := there or output_file_fault(path):
        raise ConfigError(f"--output {output}: {fault}")
    return path


if __name__ == "__main__":
    run_tool(main, NAME)
