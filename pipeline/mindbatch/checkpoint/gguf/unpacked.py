"""llama.cpp's files as model folders in the user's cache, with config.json and tokenizer made of metadata.

The weights stay where they are: gguf.json names the files. A folder's name is a digest of them.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mindbatch.checkpoint.error_lines import shown
from mindbatch.checkpoint.folders.folder_files import CONFIG_NAME, file_names, has_file
from mindbatch.checkpoint.formats.gguf import POINTER, SUFFIX
from mindbatch.checkpoint.json_object import read_json_object
from mindbatch.io.errors import CheckpointError
from mindbatch.io.storage import make_folder, write_whole

if TYPE_CHECKING:
    from mindbatch.checkpoint.gguf.folder import GgufFolder

_VERSION = 1
"""Of what is made of a file."""
_MAX_BYTES = 1 << 20
_SPLIT = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf", re.DOTALL)


def gguf_paths(path: Path) -> list[Path]:
    """The files of the model that a file, or the only model of a folder without config.json, is; else none.

    Raises:
        CheckpointError: a folder has several models, or files are missing.
    """
    if path.is_dir():
        return [] if has_file(path, CONFIG_NAME) else _in_folder(path)
    return _with_others(path) if path.suffix == SUFFIX and path.is_file() else []


def _in_folder(folder: Path) -> list[Path]:
    names = [name for name in file_names(folder) if name.endswith(SUFFIX)]
    models = [name for name in names if (match := _SPLIT.fullmatch(name)) is None or int(match[2]) == 1]
    if len(models) > 1:
        raise CheckpointError(
            f"{folder}: holds {len(models)} models of llama.cpp, such as {shown(models[0])}; give one of them"
        )
    return _with_others(folder / models[0]) if models else []


def _with_others(path: Path) -> list[Path]:
    match = _SPLIT.fullmatch(path.name)
    if match is None:
        return [path]
    count = int(match[3])
    paths = [
        path.with_name(f"{match[1]}-{number:05}-of-{count:05}{SUFFIX}") for number in range(1, count + 1)
    ]
    if missing := next((other for other in paths if not other.is_file()), None):
        raise CheckpointError(f"{missing}: missing; the model is in {count} files")
    return paths


def pointed_files(home: Path) -> list[Path]:
    """The files that a folder was made of.

    Raises:
        CheckpointError: they are not those any more that the folder was made of.
    """
    content = read_json_object(home / POINTER, _MAX_BYTES).get("files")
    if not isinstance(content, dict) or not content:
        raise CheckpointError(f"{home / POINTER}: must name files")
    for name, stamp in content.items():
        if _stamp(Path(name)) != stamp:
            raise CheckpointError(f"{name}: is not the file any more that {home} was made of; give it again")
    return [Path(name) for name in content]


def open_home(home: Path) -> GgufFolder:
    """Opens a folder that has a POINTER. Raises CheckpointError."""
    from mindbatch.checkpoint.gguf.folder import GgufFolder  # with NumPy

    return GgufFolder(home, pointed_files(home))


def _stamp(path: Path) -> list[int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return [status.st_size, status.st_mtime_ns]


def unpacked(paths: Sequence[Path], cache: Path) -> Path:
    """The folder of the files, which is made if it is not there.

    Raises:
        CheckpointError: a file is damaged, or its model or tokenizer is not read.
        StorageError: the cache cannot be written.
    """
    files = {str(path.absolute()): _stamp(path) for path in paths}
    text = json.dumps([_VERSION, files])
    entry = cache / "gguf" / hashlib.sha256(text.encode()).hexdigest()[:24]
    home = entry / paths[0].name.removesuffix(SUFFIX)
    if not has_file(home, POINTER):
        for name, content in _contents(paths).items():
            _write(home / name, content)
        _write(home / POINTER, {"files": files})  # last, so that what is incomplete is made again
    return home


def _contents(paths: Sequence[Path]) -> dict[str, Any]:
    """The files of the folder by name."""
    from mindbatch.checkpoint.gguf.folder import (
        GgufFiles,  # with NumPy, which a folder that is there needs not
    )
    from mindbatch.checkpoint.gguf.metadata import Metadata
    from mindbatch.checkpoint.gguf.tokenizer import tokenizer_of

    with GgufFiles(paths) as files:
        config = files.model().config
        tokenizer = tokenizer_of(Metadata(files.files[0].metadata, paths[0]))
    generation = {"eos_token_id": tokenizer.eos_ids} if tokenizer.eos_ids else {}
    return {
        CONFIG_NAME: config,
        "generation_config.json": generation,
        "tokenizer_config.json": tokenizer.settings,
        "tokenizer.json": tokenizer.tokenizer,
    }


def _write(path: Path, content: Any) -> None:
    make_folder(path.parent)
    write_whole(path, json.dumps(content, ensure_ascii=False).encode())
