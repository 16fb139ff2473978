"""adapter_config.json of a LoRA adapter: read strictly, so that nothing in it is passed over."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mindbatch.checkpoint.error_lines import MAX_LINES, did_you_mean, raise_if_any, shown
from mindbatch.checkpoint.json_object import read_json_object
from mindbatch.checkpoint.lora.targets import ModulePattern, Targets, targets_of
from mindbatch.io.errors import CheckpointError

Patterns = Sequence[tuple[ModulePattern, float]]
"""Numbers by the end of a module's name; the first that matches counts."""


@dataclass(frozen=True)
class LoraSettings:
    """The settings of an adapter.

    ranks, alphas: ranks and alphas of modules that have others than `rank` and `alpha`.
    uniform_scaling: scaling of all modules, if alpha does not give it.
    has_magnitudes, has_biases: True for DoRA; for lora_bias.
    ties: True if the head follows the embedding.
    base: model that it was trained on.
    start: initialisation, if it changes the base weights.
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
        """The scaling of a module. ValueError as for `rank_of`."""
        return self._scaling(self.rank_of(module), _first(self.alphas, module, self.alpha))

    def _scaling(self, rank: int, alpha: float) -> float:
        """alpha / rank, or alpha / sqrt(rank) (rsLoRA, Kalajdzievski 2023)."""
        if self.uniform_scaling is not None:
            return self.uniform_scaling
        return alpha / (math.sqrt(rank) if self.rank_stabilised else rank)


def _first(patterns: Patterns, module: str, otherwise: float) -> float:
    return next((value for pattern, value in patterns if pattern.matches_end(module)), otherwise)


ADAPTER_CONFIG = "adapter_config.json"
_MAX_BYTES = 1 << 20
MAX_RANK = 1 << 16
MAX_PATTERNS = 1000

# What does not change the product of two matrices.
# fmt: off
_IRRELEVANT = frozenset({
    "auto_mapping", "corda_config", "eva_config", "inference_mode", "loftq_config", "lora_dropout",
    "lora_ga_config", "megatron_config", "megatron_core", "peft_version", "pet_type", "qalora_group_size",
    "revision", "runtime_config", "velora_config",
})
_READ = frozenset({
    "alpha_pattern", "base_model_name_or_path", "bias", "ensure_weight_tying", "exclude_modules",
    "fan_in_fan_out", "init_lora_weights", "layers_pattern", "layers_to_transform", "lora_alpha", "lora_bias",
    "lora_rank", "modules_to_save", "peft_type", "r", "rank_pattern", "target_modules", "task_type",
    "use_dora", "use_rslora",
})
# Allowed only when null, false or empty: each of them changes the network in another way.
_UNSUPPORTED = {
    "alora_invocation_tokens": "activation from a token on (aLoRA)",
    "arrow_config": "routing between adapters (Arrow)",
    "kasa_config": "a truncated base weight (KaSA)",
    "layer_replication": "layers that are there several times",
    "monteclora_config": "sampled matrices (MonteCLoRA)",
    "target_parameters": "parameters instead of modules",
    "trainable_token_indices": "trained rows of the embedding",
    "use_bdlora": "block-diagonal matrices (BD-LoRA)",
    "use_qalora": "QALoRA",
}
# fmt: on
# These begin by changing the base weights: what is trained fits those, not the ones that one has.
_CHANGED_BASES = ("pissa", "olora", "corda", "loftq", "lora_ga")
_TASKS = (None, "CAUSAL_LM", "SEQ_2_SEQ_LM", "FEATURE_EXTRACTION")


def read_lora_config(path: Path, scaling: float | None = None) -> LoraSettings:
    """Reads an adapter_config.json of PEFT or MindFormers.

    scaling: the user's scaling, for a file without lora_alpha; if it has one, both must agree.

    Raises:
        CheckpointError: lists every key that is wrong, not supported or not understood.
    """
    content = read_json_object(path, _MAX_BYTES)
    errors = [*_kind_errors(content), *_number_errors(content, scaling)]
    ranks, alphas = _patterns(content, "rank_pattern", errors), _patterns(content, "alpha_pattern", errors)
    targets = targets_of(content, errors)
    raise_if_any([*errors, *_other_errors(content)], str(path))
    alpha, start = content.get("lora_alpha"), content.get("init_lora_weights")
    is_changed = isinstance(start, str) and start.lower().startswith(_CHANGED_BASES)
    settings = LoraSettings(
        rank=_rank(content),
        alpha=0.0 if alpha is None else float(alpha),
        uniform_scaling=scaling if alpha is None else None,
        rank_stabilised=content.get("use_rslora") or False,
        fan_in_fan_out=content.get("fan_in_fan_out") or False,
        targets=targets,
        ranks=ranks,
        alphas=alphas,
        has_magnitudes=content.get("use_dora") or False,
        has_biases=content.get("lora_bias") or False,
        ties=content.get("ensure_weight_tying") or False,
        base=content.get("base_model_name_or_path") or None,
        start=start if is_changed else None,
    )
    if scaling is not None and not math.isclose(scaling, settings.scaling, rel_tol=1e-6):
        raise CheckpointError(
            f"{path}: says the scaling {settings.scaling:g} (lora_alpha by r), given was {scaling:g}; "
            "remove one"
        )
    return settings


def config_warnings(settings: LoraSettings, base: str | None) -> Iterator[str]:
    """Lists warnings of settings that have no effect, but suggest that the adapter is for other weights.

    base: names that the model is known by; None where that does not matter.
    """
    if settings.start is not None:
        yield (
            f"init_lora_weights={shown(settings.start)}: this training began by changing the base weights: "
            "the adapter is right only with those, or converted to plain LoRA (PEFT's "
            "path_initial_model_for_weight_conversion)"
        )
    recorded = settings.base
    if base is not None and recorded and _last_name(recorded) != _last_name(base):
        yield f"base_model_name_or_path={shown(recorded)}: trained on another model than {base}"


def _last_name(model: str) -> str:
    """Extracts a model's name from a path or a hub name; also from an entry of the hub's cache."""
    parts = [part for part in model.replace("\\", "/").split("/") if part not in ("", ".")]
    if len(parts) >= 3 and parts[-2] == "snapshots":
        parts = parts[-3].split("--")
    return parts[-1].lower() if parts else ""


def _rank(content: Mapping[str, Any]) -> Any:
    return content.get("r", content.get("lora_rank"))


def _kind_errors(content: Mapping[str, Any]) -> Iterator[str]:
    kind, task = content.get("peft_type", "LORA"), content.get("task_type")
    if kind != "LORA":
        yield f"peft_type={shown(kind)}: must be 'LORA'"
    if task not in _TASKS:
        head = ", which has a classification head" if task in ("SEQ_CLS", "TOKEN_CLS") else ""
        yield f"task_type={shown(task)}{head}: must be 'CAUSAL_LM', or 'SEQ_2_SEQ_LM' of an encoder-decoder"
    if content.get("bias", "none") != "none":
        yield f"bias={shown(content['bias'])}: must be 'none'; trained biases are not supported"
    if content.get("use_dora") is True and content.get("lora_bias") is True:
        yield "use_dora=True and lora_bias=True: not supported together, by PEFT neither"
    base = content.get("base_model_name_or_path")
    if base is not None and not isinstance(base, str):
        yield f"base_model_name_or_path={shown(base)}: must be a name or null"


def _number_errors(content: Mapping[str, Any], scaling: float | None) -> Iterator[str]:
    rank, alpha = _rank(content), content.get("lora_alpha")
    if not _is_rank(rank):
        yield f"r={shown(rank)}: must be a whole number of 1 to {MAX_RANK}"
    if "r" in content and content.get("lora_rank", rank) != rank:
        yield f"r={shown(rank)} and lora_rank={shown(content['lora_rank'])}: must be the same"
    if not (alpha is None and scaling is not None) and not _is_alpha(alpha):
        yield f"lora_alpha={shown(alpha)}: must be a number above 0; the scaling is lora_alpha / r"
    for key in ("use_rslora", "fan_in_fan_out", "use_dora", "lora_bias", "ensure_weight_tying"):
        if not isinstance(content.get(key) or False, bool):
            yield f"{key}={shown(content[key])}: must be true or false"


def _patterns(content: Mapping[str, Any], key: str, errors: list[str]) -> Patterns:
    patterns = content.get(key) or {}
    if not isinstance(patterns, dict) or len(patterns) > MAX_PATTERNS:
        errors.append(f"{key}={shown(patterns)}: must be an object of at most {MAX_PATTERNS} expressions")
        return ()
    of_ranks = key == "rank_pattern"
    needed = f"a whole number of 1 to {MAX_RANK}" if of_ranks else "a number above 0"
    read: list[tuple[ModulePattern, float]] = []
    for pattern, value in patterns.items():
        if not (_is_rank(value) if of_ranks else _is_alpha(value)):
            errors.append(f"{key}: {shown(pattern)} has {shown(value)}; must be {needed}")
        try:
            read.append((ModulePattern(pattern), value))
        except ValueError as error:
            errors.append(f"{key}: {shown(pattern)} {error}")
    return tuple(read)


def _is_rank(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MAX_RANK


def _is_alpha(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1e9


def _other_errors(content: Mapping[str, Any]) -> Iterator[str]:
    num_unknown = 0
    for key, value in content.items():
        if value in (None, False, [], {}, "") or key in _READ or key in _IRRELEVANT:
            continue
        if key in _UNSUPPORTED:
            yield f"{key}={shown(value)}: {_UNSUPPORTED[key]} is not supported; must be null"
        else:
            num_unknown += 1
            near = did_you_mean(key, _READ) if num_unknown <= MAX_LINES else ""
            yield f"{shown(key)[1:-1]}={shown(value)}: not understood, so what it does would be missed{near}"
