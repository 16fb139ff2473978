"""MindFormers' list of several adapters: a JSON object of folders by name."""

import os
from pathlib import Path
from typing import Any

from mindbatch.config.faults import shown
from mindbatch.io.regular_file import read_regular
from mindbatch.io.strict_json import JsonFault, StrictReader

LIST_NAME = "lora_adapter.json"
_MAX_BYTES = 1 << 20
_READER = StrictReader(max_depth=1)


def read_adapter_list(path: Path) -> dict[str, str]:
    """The folders of adapters by name, of the file or of a folder that holds LIST_NAME.

    Folders that are not absolute are counted from the working directory, as MindFormers has it; where that
    has none of the name, from the list's own.

    Raises:
        ValueError: the file cannot be read, or does not hold names with folders.
    """
    file = path / LIST_NAME if path.is_dir() else path
    if not file.exists():
        raise ValueError(f"holds no {LIST_NAME}; must be {{NAME: FOLDER, ...}}, or MindFormers' list of them")
    try:
        content = _READER.parse(read_regular(file, _MAX_BYTES))
    except OSError as error:
        raise ValueError(f"{LIST_NAME} cannot be read ({error.strerror})") from error
    except JsonFault as error:
        raise ValueError(f"{file.name}: {error}") from error
    if not isinstance(content, dict) or not content:
        raise ValueError(f"{file.name} has {shown(content)}; must be an object of folders by name")
    return {name: _found(folder, file.parent, name) for name, folder in content.items()}


def _found(folder: Any, home: Path, name: str) -> str:
    if not isinstance(folder, str) or not folder:
        raise ValueError(f"{shown(name)} has {shown(folder)}; must be a name with the folder of an adapter")
    nested = str(home / folder)  # os.path takes any text for a path, also one that is too long
    return nested if os.path.isdir(nested) and not os.path.isdir(folder) else folder
