"""A rank process that writes down what it was told, and stays until it is ended; no MindSpore."""

import json
import os
import signal
import sys
from pathlib import Path


def main(folder: str) -> None:
    """Writes FOLDER/RANK_ATTEMPT.json, or FOLDER/scheduler_PORT.json: its variables and arguments."""
    told = dict(os.environ)
    name = f"scheduler_{told['MS_SCHED_PORT']}"
    if told.get("MS_ROLE") != "MS_SCHED":
        name = f"{told['MINDBATCH_RANK']}_{told['MINDBATCH_ATTEMPT']}"
    print(f"{name} has begun", flush=True)
    content = {"variables": told, "pid": os.getpid(), "python": sys.executable}
    beside = Path(folder) / f".{name}"
    beside.write_text(json.dumps(content))
    beside.rename(Path(folder) / f"{name}.json")
    signal.pause()
