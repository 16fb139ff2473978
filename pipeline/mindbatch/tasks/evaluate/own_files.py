"""The names that an evaluation writes, and why a folder or a page that is there is not its own."""

import os
from pathlib import Path

from mindbatch.config.faults import shown
from mindbatch.config.path_faults import output_file_fault, run_folder_fault

RESULTS = "results.json"
CONFIG = "evaluation.config.yaml"
GENERATOR = "mindbatch evaluate"
"""Name of the generator in the head of a page."""

_RUNS = {"columns", "requests"}
_NAMES = {RESULTS, CONFIG, "scored", "logs", *_RUNS}
_HEAD_BYTES = 4096


def evaluation_folder_fault(path: Path) -> str | None:
    """For the folder of an evaluation: none yet, an empty one, or that of an earlier command."""
    if (fault := run_folder_fault(path)) or not path.is_dir():
        return fault
    names = {*os.listdir(path)}
    if CONFIG in names or (names <= _NAMES and (not names or names & _RUNS)):
        return None
    strange = min(names - _NAMES, default=min(names))
    return f"has {shown(strange)} in it but no evaluation; give a new or empty folder"


def page_fault(path: Path) -> str | None:
    """For the page of a report: a name that is free, an empty file, or the page of an earlier command."""
    if (fault := output_file_fault(path)) or not path.exists():
        return fault
    with path.open("rb") as file:
        head = file.read(_HEAD_BYTES)
    is_own = not head or f'content="{GENERATOR}"'.encode() in head
    return None if is_own else "is there already and is no report; give another name"
