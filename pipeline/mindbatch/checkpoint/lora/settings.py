"""Settings of an adapter: rank and scaling of each module, and the modules that it targets."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mindbatch.checkpoint.faults import shown
from mindbatch.checkpoint.lora.module_pattern import ModulePattern
from mindbatch.checkpoint.lora.names import is_vocabulary
from mindbatch.checkpoint.lora.targets import ALL_LINEAR, Names, Pattern, Targets

MAX_TARGETS = 1000
_MAX_LAYER = 1_000_000
_ANYTHING = ".*"


def targets_of(content: Mapping[str, Any]) -> Targets:
    """The modules that a checked adapter_config.json means."""
    targets, layers = content.get("target_modules"), content.get("layers_to_transform")
    layer_names = content.get("layers_pattern") or []
    is_all = isinstance(targets, str) and targets.lower() == ALL_LINEAR
    return Targets(
        wanted=None if targets is None or is_all else _matcher(targets, at_last="peft_type" not in content),
        excluded=_matcher(content.get("exclude_modules") or []),
        saved=Names(frozenset(content.get("modules_to_save") or [])),
        layers=None if layers in (None, []) else frozenset([layers] if isinstance(layers, int) else layers),
        layer_names=(layer_names,) if isinstance(layer_names, str) else tuple(layer_names),
        all_linear=is_all,
    )


def _matcher(modules: list[str] | str, *, at_last: bool = False) -> Names | Pattern:
    """MindFormers writes the beginning of its expression before each name of a list."""
    if isinstance(modules, str):
        return Pattern(modules, ModulePattern(modules), at_last)
    return Names(frozenset(name.removeprefix(_ANYTHING) for name in modules))


def target_settings_faults(content: Mapping[str, Any]) -> Iterator[str]:
    """A line for each of these keys that is not as it must be."""
    for key in ("target_modules", "exclude_modules"):
        yield from _module_faults(key, content.get(key), may_be_empty=key == "exclude_modules")
    yield from _saved_faults(content.get("modules_to_save"))
    yield from _layer_faults(content)


def _module_faults(key: str, value: Any, *, may_be_empty: bool) -> Iterator[str]:
    if value is None or (may_be_empty and value in ([], "")):
        return
    if isinstance(value, list):
        if not value or not all(isinstance(name, str) and name for name in value):
            yield f"{key}={shown(value)}: must be names of modules"
    elif not isinstance(value, str):
        yield f"{key}={shown(value)}: must be names of modules, or a pattern"
        return
    else:
        try:
            ModulePattern(value)
        except ValueError as error:
            yield f"{key}={shown(value)}: {error}"
    listed = value if isinstance(value, list) else value.split("|")
    if len(listed) > MAX_TARGETS:
        yield f"{key}: {len(listed)} names; at most {MAX_TARGETS} are allowed"


def _saved_faults(value: Any) -> Iterator[str]:
    if value is None:
        return
    if not isinstance(value, list) or not all(isinstance(name, str) and name for name in value):
        yield f"modules_to_save={shown(value)}: must be names of modules"
    elif any(not is_vocabulary(name) for name in value):
        yield (
            f"modules_to_save={shown(value)}: whole modules other than head and token embedding, such "
            "as a classification head, are not supported; may be 'lm_head' and 'embed_tokens'"
        )


def _layer_faults(content: Mapping[str, Any]) -> Iterator[str]:
    layers, names = content.get("layers_to_transform"), content.get("layers_pattern")
    listed = layers if isinstance(layers, list) else [layers]
    if layers is not None and not all(
        isinstance(layer, int) and not isinstance(layer, bool) and 0 <= layer < _MAX_LAYER for layer in listed
    ):
        yield f"layers_to_transform={shown(layers)}: must be numbers of layers"
    if layers not in (None, []) and isinstance(content.get("target_modules"), str):
        yield f"layers_to_transform={shown(layers)}: not with a pattern as target_modules, by PEFT neither"
    if not names:
        return
    listed = names if isinstance(names, list) else [names]
    if not all(isinstance(name, str) and name.replace("_", "").isalnum() for name in listed):
        yield f"layers_pattern={shown(names)}: must be names of lists of layers, such as 'layers'"
    if layers is None:
        yield f"layers_pattern={shown(names)}: has no effect without layers_to_transform"


Patterns = Sequence[tuple[ModulePattern, float]]
"""Numbers by the end of a module's name; the first that matches counts."""


@dataclass(frozen=True)
class LoraSettings:
    """The settings of an adapter.

    ranks, alphas: for some modules others than `rank` and `alpha`. uniform_scaling: that of all
    modules, where alpha does not say it. has_magnitudes, has_biases: DoRA, lora_bias. ties: the head follows
    the embedding. base: the model that it was trained on. start: the initialisation, where that changes the
    base weights.
    """

    rank: int
    alpha: float
    rank_stabilised: bool = False
    fan_in_fan_out: bool = False
    targets: Targets = Targets()
    uniform_scaling: float | None = None
    ranks: Patterns = ()
    alphas: Patterns = ()
    has_magnitudes: bool = False
    has_biases: bool = False
    ties: bool = False
    base: str | None = None
    start: str | None = None

    @property
    def scaling(self) -> float:
        """The factor on B @ A of modules without a rank or alpha of their own."""
        return self._scaling(self.rank, self.alpha)

    def rank_of(self, module: str) -> int:
        """The rank of a module. ValueError when an expression takes too long to be matched."""
        return int(_first(self.ranks, module, self.rank))

    def scaling_of(self, module: str) -> float:
        """The scaling of a module. ValueError as of `rank_of`."""
        return self._scaling(self.rank_of(module), _first(self.alphas, module, self.alpha))

    def _scaling(self, rank: int, alpha: float) -> float:
        """alpha / rank, or alpha / sqrt(rank) (rsLoRA, Kalajdzievski 2023)."""
        if self.uniform_scaling is not None:
            return self.uniform_scaling
        return alpha / (math.sqrt(rank) if self.rank_stabilised else rank)


def _first(patterns: Patterns, module: str, otherwise: float) -> float:
    return next((value for pattern, value in patterns if pattern.matches_end(module)), otherwise)
