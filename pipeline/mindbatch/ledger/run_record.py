"""The run record, run.json: what results depend on, so that changed settings are noticed; the manifest."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, dataclass, fields
from typing import Any

import orjson
import xxhash

from mindbatch.io.amounts import is_day
from mindbatch.io.errors import ConfigError, passing_error
from mindbatch.io.regular_file import read_regular
from mindbatch.io.storage import Storage, StorageError, write_whole
from mindbatch.ledger.run_folder import RunFolder

VERSION = 2
MAX_BYTES = 64 << 20
_MAX_SHOWN = 60
_PLAIN_TEXT = re.compile(r'"[^"\\\s]+"')


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """Record of a run: its command, settings and data.

    created: time of its beginning, ISO 8601, UTC.
    command: the command line.
    fields: all settings that determine a row's result, as JSON values by dotted name.
    dataset: the digests of its files, by name.
    date: the date in chat templates, as YYYY-MM-DD.
    seed_was_drawn: True if the seed was drawn and not set by the user.
    hub: origin of a fetched model folder, with commit and digests, as from `hub.models.fetched`.
    sources: versions of the data that was fetched, by address (`remote.sources.SourceRecord`).
    """

    created: str
    command: list[str]
    fields: dict[str, Any]
    dataset: dict[str, Any]
    date: str
    seed_was_drawn: bool = False
    hub: dict[str, Any] | None = None
    sources: dict[str, Any] | None = None
    version: int = VERSION

    @property
    def fingerprint(self) -> str:
        """BLAKE2b (128 bit, hex) of the fields: results of runs with different ones are never mixed."""
        return hashlib.blake2b(_canonical(self.fields), digest_size=16).hexdigest()

    def write(self, folder: RunFolder, storage: Storage | None = None) -> None:
        """Writes the record, durably. Raises StorageError."""
        content = {**asdict(self), "fingerprint": self.fingerprint}
        content["check"] = _check(content)
        write_whole(folder.run_file, orjson.dumps(content, option=orjson.OPT_INDENT_2) + b"\n", storage)

    @classmethod
    def read(cls, folder: RunFolder) -> RunRecord:
        """Reads the record of the folder's run.

        Raises ConfigError if there is none, or it is damaged, edited or of another format; StorageError if it
        cannot be read.
        """
        path = folder.run_file
        try:
            content = orjson.loads(read_regular(path, MAX_BYTES))
        except FileNotFoundError:
            raise ConfigError(f"{folder.path}: no run here (it has no {path.name})") from None
        except OSError as error:
            raise StorageError.reading(path, error) from error
        except orjson.JSONDecodeError as error:
            raise ConfigError(f"{path}: damaged: not valid JSON ({error})") from error
        version = content.get("version") if isinstance(content, dict) else None
        if isinstance(version, int) and version != VERSION:
            raise ConfigError(
                f"{path}: written in format {version}; this mindbatch reads format {VERSION}; finish the run "
                f"with the mindbatch that began it, or remove {folder.path}"
            )
        if not isinstance(content, dict) or content.pop("check", None) != _check(content):
            raise ConfigError(f"{path}: damaged, or edited by hand: it does not fit its own check")
        match content:
            case {
                "created": str(),
                "command": [*command],
                "fields": dict(),
                "dataset": dict(),
                "date": str(date),
                "version": int(),
            } if all(isinstance(word, str) for word in command) and is_day(date):
                content["seed_was_drawn"] = content.get("seed_was_drawn") is True
                for name in ("hub", "sources"):
                    content[name] = value if isinstance(value := content.get(name), dict) else None
                return cls(**{field.name: content[field.name] for field in fields(cls)})
        raise ConfigError(f"{path}: damaged: created, command, fields, dataset or date is not a run's")


def read_manifest(folder: RunFolder) -> dict[str, Any]:
    """Returns the content of manifest.json; empty if it does not exist or is damaged.

    Raises StorageError if it cannot be read at the moment.
    """
    try:
        content = orjson.loads(read_regular(folder.manifest, MAX_BYTES))
    except OSError as error:
        if passing_error(error) is not None:
            raise StorageError.reading(folder.manifest, error) from error
        return {}
    except orjson.JSONDecodeError:
        return {}
    return content if isinstance(content, dict) else {}


def changes(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """Returns a line for each field that differs: `decoding.temperature 0.0 -> 0.7`.

    A missing field is null. Long values are shown from shortly before the first difference.
    """
    lines = []
    for name in sorted(old.keys() | new.keys()):
        before, after = _json(old, name), _json(new, name)
        if before != after and not (old.get(name) is new.get(name) is None):
            if _bare(before) != _bare(after):  # the text "0" and the number 0 keep what tells them apart
                before, after = _bare(before), _bare(after)
            start = _first_difference(before, after)
            lines.append(f"{name} {_excerpt(before, start)} -> {_excerpt(after, start)}")
    return lines


def _check(content: dict[str, Any]) -> str:
    """Returns the XXH3 (64 bit, hex) of the content."""
    return xxhash.xxh3_64_hexdigest(_canonical(content))


def _canonical(value: object) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)


def _json(fields: dict[str, Any], name: str) -> str:
    """Returns a field's value as one printable line."""
    return json.dumps(fields[name], sort_keys=True) if name in fields else "(none)"


def _bare(value: str) -> str:
    """Without the quotes of plain text."""
    return value[1:-1] if _PLAIN_TEXT.fullmatch(value) else value


def _first_difference(one: str, other: str) -> int:
    return next(
        (i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
    )


def _excerpt(text: str, start: int) -> str:
    start = max(0, start - 20) if len(text) > _MAX_SHOWN else 0
    cut = text[start : start + _MAX_SHOWN]
    return ("..." if start else "") + cut + ("..." if start + _MAX_SHOWN < len(text) else "")
