"""Reads MindFormers' list of several adapters: a JSON object of folders by name."""

from __future__ import annotations

import os
from pathlib import Path

from mindbatch.checkpoint.faults import raise_if_any, shown
from mindbatch.checkpoint.folders.folder_files import file_in
from mindbatch.checkpoint.json_object import read_json_object

LIST_NAME = "lora_adapter.json"
_MAX_BYTES = 1 << 20
MAX_ADAPTERS = 1000


def read_adapter_list(path: Path) -> dict[str, Path]:
    """The folders of adapters by name, of a file or of a folder with lora_adapter.json.

    As MindFormers has it, folders that are not absolute are counted from the working directory.

    Raises:
        CheckpointError: the file cannot be read, or lists each entry that is no name with a folder.
    """
    file = file_in(path, LIST_NAME) if path.is_dir() else path
    content = read_json_object(file, _MAX_BYTES)
    faults = [
        f"{shown(name)} has {shown(folder)}; must be a name with the folder of an adapter"
        for name, folder in content.items()
        if not name.isprintable() or not name or not isinstance(folder, str) or not os.path.isdir(folder)
    ]
    if not 1 <= len(content) <= MAX_ADAPTERS:
        faults.append(f"has {len(content)} adapters; must be 1 to {MAX_ADAPTERS}")
    raise_if_any(faults, str(file))
    return {name: Path(folder) for name, folder in content.items()}
