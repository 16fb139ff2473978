"""Chooses the files of a dataset's split: by its card's `configs`, or by the names that hubs agree on."""

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import yaml

from mindbatch.hub.listings import Refused
from mindbatch.io.error_lines import did_you_mean
from mindbatch.io.file_patterns import is_pattern, matches

CARD = "README.md"
LARGEST_CARD = 4 << 20
_MAX_NAMED = 10
_KEYWORDS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev"),
    "test": ("test", "testing", "eval", "evaluation"),
}
_SHARD = re.compile(r"data/([\w.]+(?:-[\w.]+)*?)-\d{5}-of-\d{5}[^/]*")
_WORDS = re.compile(r"[^a-zA-Z0-9]+")
_CARD_HEAD = re.compile(r"\A---\s*\n(.*?)\n---\s*(?:\n|\Z)", re.DOTALL)
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

Splits = dict[str, list[str]]
"""The files, in order, by the name of a split."""


def chosen_files(names: Collection[str], card: str, path: str, suffixes: Sequence[str]) -> list[str]:
    """Returns the files that a path below a dataset stands for: a pattern of files, [CONFIG/]SPLIT, or
    nothing where there is one split.

    names: of all files. card: the text of README.md. suffixes: of files with rows, in lower case.

    Raises:
        Refused: there is no such split, or several; the line names what there is.
    """
    if is_pattern(path):
        if not (fitting := sorted(name for name in names if matches(name, path))):
            raise _refused(f"no file fits {path}")
        return fitting
    if path in names:  # a file whose name does not say what it holds
        return [path]
    rows = [name for name in sorted(names) if is_data(name, suffixes)]
    configs = _configs_of(card, rows, names) or {"": by_names(rows)}
    words = path.split("/") if path else []
    return _of_split(*_config(configs, words))


def _refused(line: str) -> Refused:
    return Refused(line, lasts=True)


def is_data(name: str, suffixes: Sequence[str]) -> bool:
    return name.lower().endswith(tuple(suffixes))


def _config(configs: Mapping[str, Splits], words: list[str]) -> tuple[Splits, list[str], str]:
    """Chooses a configuration of the card; returns its splits, the remaining words and its name."""
    if words and words[0] in configs and not (len(words) == 1 and words[0] in configs.get("default", ())):
        return configs[words[0]], words[1:], words[0]
    default = next(iter(configs)) if len(configs) == 1 else "default"
    if default not in configs:
        raise _refused(
            f"has several configurations ({_named(configs)}); give CONFIGURATION/SPLIT after its name"
        )
    return configs[default], words, default


def _of_split(splits: Splits, words: list[str], config: str) -> list[str]:
    where = f" in its configuration {config}" if config not in ("", "default") else ""
    there = f"; it has {_named(splits)}" if splits else "; it has no file of rows"
    split = "/".join(words)
    if not words and len(splits) == 1:
        return next(iter(splits.values()))
    if not words:
        raise _refused(f"a split must be given{where}{there}")
    if not splits.get(split):
        raise _refused(f"has no split {split!a}{where}{there}{did_you_mean(split, splits)}")
    files = splits[split]
    kinds = {_kind(file) for file in files}
    if len(kinds) > 1:
        raise _refused(
            f"its split {split!a} has files of several kinds ({_named(files)}); name the file or a pattern"
        )
    return files


def _kind(file: str) -> str:
    """The suffix that names the format; a compressed file is of the same kind."""
    name = file.lower().removesuffix(".gz").removesuffix(".zst")
    return name.rpartition("/")[2].rpartition(".")[2]


def _named(names: Iterable[str]) -> str:
    shown = sorted(names)
    more = f" and {len(shown) - _MAX_NAMED} more" if len(shown) > _MAX_NAMED else ""
    return ", ".join(shown[:_MAX_NAMED]) + more


def by_names(files: Sequence[str]) -> Splits:
    """Finds the splits in names: data/NAME-00000-of-00001.parquet, or a folder or file with a word for train,
    validation or test in its name. Where no name has any, all files are `train`.
    """
    shards, keyed = defaultdict[str, list[str]](list), defaultdict[str, list[str]](list)
    for file in files:
        if match := _SHARD.fullmatch(file):
            shards[match[1]].append(file)
        words = {word.lower() for word in _WORDS.split(file.partition(".")[0])}
        for split, keywords in _KEYWORDS.items():
            if words & {*keywords}:
                keyed[split].append(file)
                break
    if shards or keyed:
        return dict(shards or keyed)
    plain = [file for file in files if not file.lower().endswith(".txt")] or files
    return {"train": [*plain]} if plain else {}


def _configs_of(card: str, rows: Sequence[str], names: Collection[str]) -> dict[str, Splits]:
    """Reads `configs` of the card; empty if it has none. The default one is called `default`, too."""
    configs: dict[str, Splits] = {}
    for config in _card_head(card).get("configs") or ():
        if not isinstance(config, dict) or not isinstance(config.get("config_name"), str):
            raise _refused(f"{CARD}: configs: each must have a config_name")
        splits = _splits_of(config, rows, names)
        configs[config["config_name"]] = splits
        if config.get("default") is True:
            configs["default"] = splits
    return configs


def _splits_of(config: Mapping[str, Any], rows: Sequence[str], names: Collection[str]) -> Splits:
    """The splits of a configuration: `data_files` is a pattern, a list of patterns or of {split, path}, or a
    mapping of splits to patterns; without it they are found by the names in `data_dir`."""
    folder = str(config.get("data_dir") or "").strip("/")
    data_files = config.get("data_files")
    if data_files is None:
        inside = [name for name in rows if name.startswith(f"{folder}/")] if folder else rows
        return by_names(inside)
    if isinstance(data_files, dict):
        entries = [*data_files.items()]
    else:
        items = data_files if isinstance(data_files, list) else [data_files]
        entries = [
            (item.get("split", "train"), item.get("path")) if isinstance(item, dict) else ("train", item)
            for item in items
        ]
    splits: Splits = {}
    for split, written in entries:
        patterns = written if isinstance(written, list) else [written]
        if not all(isinstance(pattern, str) for pattern in patterns):
            raise _refused(f"{CARD}: data_files of the split {str(split)[:80]!a}: must be patterns of files")
        full = [f"{folder}/{pattern}" if folder else pattern.removeprefix("./") for pattern in patterns]
        files = (name for pattern in full for name in sorted(names) if matches(name, pattern))
        splits[str(split)] = [*dict.fromkeys([*splits.get(str(split), []), *files])]
    return splits


def _card_head(card: str) -> dict[str, Any]:
    """Reads the YAML at the beginning of a card, without aliases, by which a page could become gigabytes."""
    match = _CARD_HEAD.match(card.replace("\r\n", "\n"))
    if match is None:
        return {}
    try:
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(match[1], Loader=_Loader)):
            raise _refused(f"{CARD}: has YAML aliases, which are not read; name a file")
        content = yaml.load(match[1], Loader=_Loader)  # safe: plain values only
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())[:200]
        raise _refused(f"{CARD}: its head is not valid YAML; name a file ({reason})") from error
    return content if isinstance(content, dict) else {}
