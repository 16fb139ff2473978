"""Executes examples/first_batch.ipynb in an empty folder and saves its outputs in it.

python docs/generator/run_notebook.py
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).resolve().parents[2] / "examples/first_batch.ipynb"
SECONDS = 600


def executed(path: Path, folder: Path) -> Any:
    """The notebook with the outputs of its cells, which run in the folder with `mindbatch` of this Python.

    Raises CellExecutionError where a cell fails.
    """
    notebook = nbformat.read(path, as_version=4)
    programs = str(Path(sys.executable).parent)
    environment = {**os.environ, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "HOME": str(folder)}
    client = NotebookClient(
        notebook,
        timeout=SECONDS,
        kernel_name="python3",
        record_timing=False,
        resources={"metadata": {"path": str(folder)}},
    )
    client.execute(env=environment)
    notebook.metadata.pop("language_info", None)  # the version of this Python
    return notebook


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        nbformat.write(executed(NOTEBOOK, Path(name)), NOTEBOOK)
    print(NOTEBOOK)
