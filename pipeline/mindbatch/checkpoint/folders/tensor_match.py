"""Matches a folder's tensors with those a model needs, by name, shape and dtype; all faults at once."""

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase

from mindbatch.checkpoint.faults import MAX_LINES, did_you_mean, first_lines, shown
from mindbatch.checkpoint.folders.model_folder import StoredWeights
from mindbatch.checkpoint.formats.floats import FLOAT_DTYPES


def match_tensors(
    expected: Mapping[str, tuple[int, ...]], folder: StoredWeights, optional_unexpected: Iterable[str] = ()
) -> list[str]:
    """Fault lines, none when all is well: about ten, shared by the kinds of fault, and counts of the rest.

    `expected` maps names to shapes. `optional_unexpected` are shell patterns (fnmatch, case-sensitive) of
    names that may be there without being needed, such as "*.attn.masked_bias".
    """
    patterns = tuple(optional_unexpected)
    present = set(folder.names)
    unfit = [name for name in expected if name in present and _misfits(folder, name, expected[name])]
    missing = [name for name in expected if name not in present]
    unexpected = [
        name
        for name in folder.names
        if name not in expected and not any(fnmatchcase(name, pattern) for pattern in patterns)
    ]
    wanted = {name: tuple(expected[name]) for name in missing}
    kinds = [
        (unfit, lambda name: _unfit(folder, name, expected[name]), "tensors that do not fit"),
        (missing, lambda name: _missing(folder, name, expected[name]), "missing tensors"),
        (unexpected, lambda name: _unexpected(folder, name, wanted), "unexpected tensors"),
    ]
    share = MAX_LINES // max(1, sum(bool(names) for names, _, _ in kinds))
    return [line for names, describe, noun in kinds for line in first_lines(names, describe, share, noun)]


def _misfits(folder: StoredWeights, name: str, shape: tuple[int, ...]) -> list[str]:
    info = folder.info(name)
    faults = []
    if info.shape != tuple(shape):
        faults.append(f"has shape {[*info.shape]}, needed is {[*shape]}")
    if info.dtype not in FLOAT_DTYPES:
        faults.append(f"has dtype {info.dtype}, needed is one of {', '.join(FLOAT_DTYPES)}")
    return faults


def _unfit(folder: StoredWeights, name: str, shape: tuple[int, ...]) -> str:
    return f"{_place(folder, name)} {'; '.join(_misfits(folder, name, shape))}"


def _missing(folder: StoredWeights, name: str, shape: tuple[int, ...]) -> str:
    return f"{folder.path}: tensor {shown(name)} is missing; needed with shape {[*shape]}"


def _unexpected(folder: StoredWeights, name: str, wanted: Mapping[str, tuple[int, ...]]) -> str:
    shape = folder.info(name).shape
    near = did_you_mean(name, [candidate for candidate, needed in wanted.items() if needed == shape])
    return f"{_place(folder, name)} of shape {[*shape]} is not part of this model{near}"


def _place(folder: StoredWeights, name: str) -> str:
    return f"{folder.path / folder.file_name(name)}: tensor {shown(name)}"
