"""Writes the SHA-256 of all tensors of a checkpoint to digests.json in its folder."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "pipeline"))  # installed or not

from mindbatch.checkpoint.folders.digests import record_digests
from mindbatch.io.errors import EXIT_DONE, MindBatchError
from mindbatch.io.screen_text import printable, run_tool, say, show
from mindbatch.io.tool_parser import ToolParser

NAME = "write_digests.py"


def main(arguments: list[str] | None = None) -> int:
    """Writes digests.json for each rank, prints its path, and returns the exit code (docs/generate.md)."""
    parser = ToolParser(description="Write digests.json, which is verified when the checkpoint is read.")
    parser.add_argument("folder", help="model folder, folder with one .safetensors or .ckpt, or rank folders")
    parser.add_argument("--replace", action="store_true", help="overwrite an existing digests.json")
    options = parser.parse_args(arguments)
    try:
        for path in record_digests(options.folder, replace=options.replace):
            show(printable(path))
    except MindBatchError as error:
        say(*error.lines, name=NAME)
        return error.exit_code
    return EXIT_DONE


if __name__ == "__main__":
    run_tool(main, NAME)
