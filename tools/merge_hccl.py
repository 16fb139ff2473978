"""Merges rank tables of several servers into one, as MindFormers' tool of this name does.

    python tools/merge_hccl.py hccl_8p_01234567_10.0.0.1.json hccl_8p_01234567_10.0.0.2.json

Ranks are renumbered in the order of the files. The tool overwrites the file hccl_{servers}s_{ranks}p.json in
the current folder. Differences from MindFormers' tool: tables of the same server and invalid tables are
errors. Only Python is needed.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "pipeline"))  # installed or not

from mindbatch.io.errors import EXIT_DONE, MindBatchError
from mindbatch.io.screen_text import run_tool, say, show
from mindbatch.io.tool_parser import ToolParser
from mindbatch.launch.rank_table import size_errors, table_rows
from mindbatch.launch.table_files import merge_files, name_for_servers, write_table
from mindbatch.launch.table_reader import AllowedDeviations

NAME = "merge_hccl.py"


def main(arguments: list[str] | None = None) -> int:
    """Writes the table, prints its ranks and path, and returns the exit code (docs/generate.md)."""
    parser = ToolParser(prog=NAME, description="Merge rank tables of several servers into one.")
    parser.add_argument("file_list", nargs="+", help="rank tables, in the order of the ranks")
    options = parser.parse_args(arguments)
    try:
        table, notes = merge_files([*map(Path, options.file_list)], AllowedDeviations(uneven=True))
        path = Path.cwd() / name_for_servers(table)
        write_table(table, path)
    except MindBatchError as error:
        say(*error.lines, name=NAME)
        return error.exit_code
    say(*notes, *size_errors(table), name=NAME)
    show(*table_rows(table), f"Completed: the rank table is in: {path}")
    return EXIT_DONE


if __name__ == "__main__":
    run_tool(main, NAME)
