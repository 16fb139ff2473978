"""The supported type that a configuration of another one is nearest to, and what differs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from mindbatch.io.errors import CheckpointError, ConfigError

LEAST_SHARED = 4
"""Keys that a configuration shares at least with the type that it is near to."""
_MOST_IN_A_LINE = 3


@dataclass(frozen=True)
class NearestType:
    """differences: what a model of this type would have otherwise, as faults of the configuration."""

    model_type: str
    differences: tuple[str, ...]

    def brief(self) -> str:
        """Lists for each difference what was found, in part of a line."""
        described = [
            fault.partition(": ")[2].partition(";")[0] for fault in self.differences[:_MOST_IN_A_LINE]
        ]
        more = len(self.differences) - len(described)
        what = ", ".join([*described, *([f"and {more} more"] if more else [])])
        return f"{self.model_type}, where differs: {what or 'no key, but tensors may'}"


def nearest_type(
    config: Mapping[str, Any],
    source: str,
    keys_of: Mapping[str, Collection[str]],
    describe: Callable[[Mapping[str, Any], str], object],
) -> NearestType | None:
    """The type that understands a configuration with the fewest faults; of several, with fewest other keys.

    None where it shares few keys with any. The weights are not looked at: tensors may differ, too.

    keys_of: the types, and the keys of their configurations. describe: reads a configuration; its faults
    are CheckpointError or ConfigError.
    """
    candidates: list[tuple[int, int, NearestType]] = []
    for model_type, its_own in keys_of.items():
        if len(config.keys() & its_own) >= LEAST_SHARED:
            differences = _faults(describe, {**config, "model_type": model_type}, source)
            others = len(set(its_own) - config.keys())
            candidates.append((len(differences), others, NearestType(model_type, differences)))
    return min(candidates, key=lambda candidate: candidate[:2])[2] if candidates else None


def _faults(
    describe: Callable[[Mapping[str, Any], str], object], config: Mapping[str, Any], source: str
) -> tuple[str, ...]:
    try:
        describe(config, source)
    except (CheckpointError, ConfigError) as error:
        return tuple(error.faults)
    return ()
