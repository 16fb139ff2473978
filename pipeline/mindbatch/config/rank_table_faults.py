"""What the options of `mindbatch rank-table` may be together."""

from collections.abc import Iterator
from typing import Any

from mindbatch.config.keys import SchemaKeys, value_at
from mindbatch.config.rank_table_schema import CHECK, MERGE, WRITE
from mindbatch.config.schema import RankTableConfig
from mindbatch.config.settings import shown

OF_ALL = ("action", "files", "num_ranks", "uneven", "verbose", "output.format")
TO_A_FILE = ("output.file", "output.replace")
OF_SERVERS = ("version", "servers")


def rank_table_faults(config: RankTableConfig, keys: SchemaKeys) -> Iterator[str]:
    """Every fault but those of single values and of paths."""
    if config.action not in (WRITE, CHECK, MERGE):
        return
    yield from _file_faults(config.action, config.files)
    used = {CHECK: OF_ALL, MERGE: OF_ALL + TO_A_FILE}.get(config.action, tuple(keys.keys))
    yield from _unused(config, keys, used, f"rank-table {config.action}")
    if config.action == WRITE and config.servers is not None:
        yield from _unused(
            config, keys, OF_ALL + TO_A_FILE + OF_SERVERS, "servers, which have all of their own"
        )
    if config.action == WRITE and config.servers is None and config.version == "1.0":
        for name in ("super_device_ids", "super_pod_id"):
            if getattr(config, name) is not None:
                yield f"{name}: only in version 1.2; add version=1.2"


def _file_faults(action: str, files: Any) -> Iterator[str]:
    if not isinstance(files, list | tuple) or not all(isinstance(file, str) for file in files):
        yield f"files={shown(files)}: must be a list of files"
    elif action == WRITE and files:
        yield "files: not read to write a table; mindbatch rank-table check FILE ... or merge FILE ..."
    elif action != WRITE and not files:
        yield f"files: must be given: mindbatch rank-table {action} FILE ..."


def _unused(config: RankTableConfig, keys: SchemaKeys, used: tuple[str, ...], what: str) -> Iterator[str]:
    """An option that would be ignored is one that the user was mistaken about."""
    for name, key in keys.keys.items():
        value = value_at(config, name)
        if name not in used and value != key.default:
            yield f"{name}={shown(value)}: has no effect with {what}; remove it"
