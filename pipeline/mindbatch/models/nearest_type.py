"""The supported type that a configuration of another one is nearest to, and what differs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mindbatch.errors import CheckpointError, ConfigError
from mindbatch.models.registry import MODEL_TYPES, declaration, describe

LEAST_SHARED = 4
"""Keys that a configuration shares at least with the type that it is near to."""


@dataclass(frozen=True)
class NearestType:
    """differences: what a model of this type would have otherwise, as faults of the configuration."""

    model_type: str
    differences: tuple[str, ...]


def nearest_type(config: Mapping[str, Any], source: str) -> NearestType | None:
    """The type that understands a configuration with the fewest faults; of several, with fewest other keys.

    None where it shares few keys with any. The weights are not looked at: tensors may differ, too.
    """
    found: list[tuple[int, int, NearestType]] = []
    for model_type in MODEL_TYPES:
        its_own = declaration(model_type).defaults.keys()
        if len(config.keys() & its_own) >= LEAST_SHARED:
            differences = _differences({**config, "model_type": model_type}, source)
            others = len(its_own - config.keys())
            found.append((len(differences), others, NearestType(model_type, differences)))
    return min(found, key=lambda each: each[:2])[2] if found else None


def _differences(config: Mapping[str, Any], source: str) -> tuple[str, ...]:
    try:
        describe(config, source=source)
    except (CheckpointError, ConfigError) as error:
        return tuple(error.faults)
    return ()
