"""Resolves and checks the paths that users give, to their own files or to shipped data.

Only names and kinds of files are looked at, never their content.
"""

import errno
import os
import re
import secrets
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

from mindbatch.config.error_log import shown
from mindbatch.hub.models import HUGGING_FACE, cached_model, fetch_hint
from mindbatch.io.error_lines import did_you_mean
from mindbatch.io.errors import CheckpointError
from mindbatch.io.file_patterns import TooMany, has_match, is_pattern
from mindbatch.io.regular_file import check_own
from mindbatch.io.storage import remove_abandoned

SHIPPED = "shipped:"
"""Prefix of a path in the data that is installed with MindBatch."""

STANDARD_INPUT = "-"
"""Stands for standard input where a file to read is expected."""

SAVED_BESIDE = ".config.yaml"
"""Suffix of the file with the configuration of a generated file."""

SAVED_CONFIG = "config.yaml"
"""File in the folder of a run with its configuration."""

_PACKAGE = Path(__file__).resolve().parents[1]
_SIBLINGS_LOOKED_AT = 10_000
_HEAD_BYTES = 4096


def data_root() -> Path:
    """Returns the folder with configs/ and examples/: the package in a wheel, else the checkout."""
    return _PACKAGE if (_PACKAGE / "configs").is_dir() else _PACKAGE.parents[1]


def configs_folder() -> Path:
    return data_root() / "configs"


def resolve_path(text: str) -> Path:
    """Resolves `shipped:` to the shipped data, or ~ to the user's home.

    Raises ValueError for a `shipped:` path that leads out of the shipped data, and for an unknown ~user.
    """
    if not text.startswith(SHIPPED):
        return expand_home(text)
    root = data_root()
    path = (root / text.removeprefix(SHIPPED)).resolve()
    if not path.is_relative_to(root):
        raise ValueError("leads out of the data shipped with MindBatch")
    return path


def expand_home(text: str) -> Path:
    """Converts `text` to a path, with a leading ~ replaced. Raises ValueError if there is no such home."""
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        raise ValueError("the home folder cannot be found") from error


def near_sibling(path: Path) -> str:
    """Returns `; did you mean PATH?` if the folder of a missing path has one of a similar name, else ""."""
    try:
        names = [entry.name for entry in islice(path.parent.iterdir(), _SIBLINGS_LOOKED_AT)]
    except OSError:
        return ""
    return did_you_mean(path.name, names, notation=path.with_name)


def near_shipped(text: str) -> str:
    """Returns `; did you mean shipped:TEXT?` if a missing path is one of the shipped examples, else ""."""
    if not text.startswith("examples/"):
        return ""
    try:
        is_there = resolve_path(SHIPPED + text).exists()
    except (OSError, ValueError):
        return ""
    return f"; did you mean {SHIPPED}{text}?" if is_there else ""


LONGEST_SHOWN = 200
"""Limit of characters of a path in a message."""

ALREADY_EXISTS = "already exists; use another name, or output.overwrite=true"

DATA_SUFFIXES = (".json", ".csv", ".tsv", ".parquet", ".gz", ".zst")
"""Suffixes of files with rows, which are no files of prompts."""

_PROBES = re.compile(r"\.mindbatch-[0-9a-f]{16}")

PathCheck = Callable[[Path], str | None]
"""Explains why a path cannot be used; returns None if it can."""


def resolved(
    key: str,
    text: str | None,
    error_of: PathCheck,
    errors: list[str],
    *,
    is_model: bool = False,
    revision: str | None = None,
    hub: str = HUGGING_FACE,
    is_fetched: bool = False,
) -> str | None:
    """Resolves the path of a key, checks it by `error_of`, and appends its error to `errors`.

    is_model: `text` may also be the name of a model in the local cache of the hub, in this revision.
    is_fetched: model.download=true fetches such a model, so that an error need not advise that.
    """
    if text is None:
        return None
    try:
        path = resolve_path(text)
        _raise_unusable(path)
        if is_model and not path.exists():
            path = cached_model(text, revision, hub) or path
        if is_model and text:
            path = _of_llama_cpp(path)
        problem = error_of(path) if text else "must not be empty"
        if problem and not path.exists():
            advice = fetch_hint(text, hub, is_fetched=is_fetched) if is_model else ""
            problem += near_shipped(text) or advice
    except OSError as error:  # no permission, a name that is too long
        path, problem = Path(text), f"cannot be used ({error.strerror})"
    except ValueError as error:  # no such home, a null byte
        path, problem = Path(text), str(error)
    except CheckpointError as error:
        errors += [f"{key}={shown(text, LONGEST_SHOWN)}: {line}" for line in error.lines]
        return str(path)
    if problem:
        errors.append(f"{key}={shown(text, LONGEST_SHOWN)}: {problem}")
    return str(path)


def _of_llama_cpp(path: Path) -> Path:
    """The folder that is made of a model's files of llama.cpp; other paths as they are. CheckpointError."""
    if path.suffix != ".gguf" and (not path.is_dir() or (path / "config.json").exists()):
        return path
    from mindbatch.checkpoint.gguf.unpacked import gguf_paths, unpacked  # few models are in such files
    from mindbatch.config.environment import cache_folder

    paths = gguf_paths(path)
    return unpacked(paths, cache_folder()) if paths else path


def _raise_unusable(path: Path) -> None:
    """Raises OSError where nobody can say what is at a path; `exists` of Python 3.14 is False there."""
    try:
        path.stat()
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.EBADF, errno.ELOOP):
            raise
    except ValueError:  # a null byte
        pass


def resolved_tools(key: str, tools: Any, errors: list[str]) -> Any:
    """Resolves `tools` if it is a text, which is the path of a file."""
    if not isinstance(tools, str):
        return tools
    return resolved(key, tools, input_file_error("a JSON list of tools"), errors)


def any_path(path: Path) -> None:
    """Accepts any path, for keys that have no effect."""


def model_folder_error(path: Path) -> str | None:
    error = folder_error(path)
    if error is None and (path / "config.json").is_file():
        return None
    from mindbatch.checkpoint.folders.foreign_folders import foreign_file, foreign_folder
    from mindbatch.checkpoint.folders.resharded import ranks_without_config  # only a mistake needs these

    if path.is_file() and (foreign := foreign_file(path)):
        return foreign
    if error is None:
        return foreign_folder(path) or ranks_without_config(path) or "the folder holds no config.json"
    return error


def folder_error(path: Path) -> str | None:
    if path.is_dir():
        return None
    if path.exists():
        return f"is a file; give the folder that holds it: {path.parent}"
    return f"no such folder{near_sibling(path)}"


def adapter_error(path: Path) -> str | None:
    from mindbatch.checkpoint.formats.registry import SEARCHED_SUFFIXES  # few commands have an adapter

    return None if path.is_file() and path.suffix in SEARCHED_SUFFIXES else folder_error(path)


def checkpoint_error(path: Path) -> str | None:
    """Checks a file or folder with tensors. Its content is checked later."""
    return None if path.exists() else f"no such file or folder{near_sibling(path)}"


def input_file_error(holds: str, hint: str = "") -> PathCheck:
    """Checks a file to read. holds: its content in words, as `a prompt on each line`."""

    def error(path: Path) -> str | None:
        if path.is_dir():
            return f"is a folder; give a file with {holds}"
        if not path.exists():
            return f"no such file{near_sibling(path)}"
        return None if path.is_file() else f"is no regular file; give a file with {holds}{hint}"

    return error


def prompts_file_error(path: Path) -> str | None:
    """Checks a file with a prompt on each line, as text or JSON."""
    if error := input_file_error("a prompt on each line", ", or - for standard input")(path):
        return error
    if path.suffix.lower() not in DATA_SUFFIXES:
        return None
    return (
        "must be a text with a prompt on each line, or .jsonl; the rows of this file are run by "
        f"mindbatch batch data.path={path} output.dir=DIR"
    )


def rows_error(path: Path) -> str | None:
    """Checks a dataset: a file, a folder or a pattern. The content is checked later."""
    if path.exists():
        return None if os.access(path, os.R_OK) else "cannot be read (Permission denied)"
    if not is_pattern(path):
        return f"no such file or folder{near_sibling(path)}"
    if "**" in path.parts:  # could go through a whole disk
        return None
    try:
        return None if has_match(path) else "no file fits this pattern"
    except TooMany as error:
        return str(error)


def output_file_error(path: Path) -> str | None:
    if path.is_dir():
        return "is a folder; give the name of a file in it"
    try:
        check_own(path)
    except OSError as error:
        from mindbatch.io.storage import reason_of  # only a mistake pays for the import

        return f"is not replaced ({reason_of(error)}); leave the key out, and lead standard output there"
    if not path.parent.is_dir():
        return f"the folder {path.parent} does not exist"
    return _write_error(path.parent) or _new_file_error(path.parent)


def page_error(generator: str) -> PathCheck:
    """Checks a page to write: the file is new, empty, or an earlier page. generator: its name in the head."""

    def error(path: Path) -> str | None:
        if (problem := output_file_error(path)) or not path.exists():
            return problem
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
        is_own = not head or f'content="{generator}"'.encode() in head
        return None if is_own else "already exists and is no report; use another name"

    return error


def new_files_error(*endings: str) -> PathCheck:
    """Checks a new file to write: neither it exists, nor a file of its name and one of the `endings`."""

    def error(path: Path) -> str | None:
        there = [name for ending in ("", *endings) if os.path.lexists(name := f"{path}{ending}")]
        where = "" if there[:1] == [str(path)] else f"{there[0]} " if there else ""
        return output_file_error(path) or (f"{where}{ALREADY_EXISTS}" if there else None)

    return error


def new_folder_error(*names: str) -> PathCheck:
    """Checks a folder of outputs that must not have any of the `names` yet."""

    def error(path: Path) -> str | None:
        there = [name for name in names if os.path.lexists(path / name)]
        return run_folder_error(path) or (f"{path / there[0]} {ALREADY_EXISTS}" if there else None)

    return error


def run_folder_error(path: Path) -> str | None:
    """Checks the folder of a run, which is created if it does not exist."""
    for folder in (path, *path.parents):
        if folder.is_dir():
            return _write_error(folder) or (_new_file_error(folder) if folder != path else None)
        if os.path.lexists(folder):
            return "is a file; give a folder" if folder == path else f"{folder} is a file, not a folder"
    return None


def _write_error(folder: Path) -> str | None:
    return None if os.access(folder, os.W_OK | os.X_OK) else f"the folder {folder} cannot be written"


def _new_file_error(folder: Path) -> str | None:
    """Creates and removes a file, for permissions say too little: root has all, and /proc takes no file."""
    try:
        os.close(os.open(folder, os.O_WRONLY | os.O_TMPFILE | os.O_CLOEXEC, 0o600))
    except OSError:  # a file system that has no files without a name, or cannot be written
        try:
            _make_and_remove(folder / f".mindbatch-{secrets.token_hex(8)}")
        except OSError as error:
            return f"no file can be made in the folder {folder} ({error.strerror})"
    return None


def _make_and_remove(probe: Path) -> None:
    os.close(os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    probe.unlink(missing_ok=True)  # another process may have taken it for one that was left
    remove_abandoned(probe.parent, _PROBES.fullmatch)
