"""Resolves a path given by the user: their own file, or shipped data."""

from itertools import islice
from pathlib import Path

from mindbatch.io.fault_lines import did_you_mean

SHIPPED = "shipped:"
"""Prefix of a path below the data that travels with MindBatch, wherever that is installed."""

STANDARD_INPUT = "-"
"""In place of the path of a file to read."""

SAVED_BESIDE = ".config.yaml"
"""Suffix that, after the name of a generated file, names its configuration."""

SAVED_CONFIG = "config.yaml"
"""The configuration of a run, in its folder."""

_PACKAGE = Path(__file__).resolve().parents[1]
_SIBLINGS_LOOKED_AT = 10_000


def data_root() -> Path:
    """The folder that holds configs/ and examples/: the package itself in a wheel, else the checkout."""
    return _PACKAGE if (_PACKAGE / "configs").is_dir() else _PACKAGE.parents[1]


def configs_folder() -> Path:
    """The shipped Hydra tree."""
    return data_root() / "configs"


def resolve_path(text: str) -> Path:
    """The path that `text` names: below the shipped data after `shipped:`, else the user's own (~ is home).

    A `shipped:` path that leads out of the shipped data raises ValueError, as does an unknown ~user.
    """
    if not text.startswith(SHIPPED):
        return expand_home(text)
    root = data_root()
    path = (root / text.removeprefix(SHIPPED)).resolve()
    if not path.is_relative_to(root):
        raise ValueError("leads out of the data shipped with MindBatch")
    return path


def expand_home(text: str) -> Path:
    """`text` as a path, with a leading ~ replaced. Raises ValueError when there is no such home."""
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        raise ValueError("the home folder cannot be found") from error


def near_sibling(path: Path) -> str:
    """`; did you mean PATH?` with a path beside the missing `path` of much the same name, or nothing."""
    try:
        names = [entry.name for entry in islice(path.parent.iterdir(), _SIBLINGS_LOOKED_AT)]
    except OSError:
        return ""
    return did_you_mean(path.name, names, notation=path.with_name)


def near_shipped(text: str) -> str:
    """`; did you mean shipped:TEXT?` where the missing path is one of the shipped examples, or nothing."""
    if not text.startswith("examples/"):
        return ""
    try:
        is_there = resolve_path(SHIPPED + text).exists()
    except (OSError, ValueError):
        return ""
    return f"; did you mean {SHIPPED}{text}?" if is_there else ""
