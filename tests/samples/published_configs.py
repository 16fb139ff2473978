"""Published config.json files, of tests/published: one file each.

A file is a config.json as its owner published it, or {source, parameters, config}: where it was found, the
number of parameters that its owner tells (null: not known), and the content.
"""

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / "published"
RECORDED = FOLDER.parent / "numerics/fixtures/published.json.xz"


@dataclass(frozen=True)
class PublishedConfig:
    name: str
    config: dict[str, Any]
    parameters: int | None = None


@lru_cache(maxsize=1)
def published() -> dict[str, PublishedConfig]:
    """By name, all of them."""
    return {path.stem: _read(path) for path in sorted(FOLDER.glob("*.json"))}


def _read(path: Path) -> PublishedConfig:
    content = json.loads(path.read_text("utf-8"))
    return PublishedConfig(path.stem, content.get("config", content), content.get("parameters"))
