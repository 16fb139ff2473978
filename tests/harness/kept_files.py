"""The folders of a server that has ended: whole records and their files, under its own names only."""

from __future__ import annotations

import json
import re
from pathlib import Path

from harness.watched_server import Findings

_OWN = re.compile(r"(file-|batch_)[0-9a-f]{24}\.jsonl?|batch_[0-9a-f]{24}")


def check_folders(served: Path, temporary: Path, outside: list[Path], findings: Findings) -> None:
    """Finds what is half written, temporary or under a client's name. outside: where such names may lead."""
    if left := [*temporary.iterdir()]:
        findings.add("temporary files are left", str(left))
    for folder in (served / "files", served / "batches"):
        names = {path.name for path in folder.iterdir()}
        if wrong := [name for name in names if not _OWN.fullmatch(name)]:
            findings.add("files of other names", str(wrong))
        for path in folder.glob("*.json"):
            if json.loads(path.read_bytes())["id"] != path.stem:
                findings.add("a record of another name", path.name)
            if path.stem.startswith("file-") and f"{path.stem}.jsonl" not in names:
                findings.add("a record without its file", path.name)
        for path in folder.glob("*.jsonl"):
            if f"{path.stem}.json" not in names:
                findings.add("a file without its record", path.name)
    for place in (*outside, Path("/tmp")):
        if planted := [*place.glob("*planted*")]:
            findings.add("a client's name was used as a path", str(planted))
