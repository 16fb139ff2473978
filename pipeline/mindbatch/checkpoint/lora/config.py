"""adapter_config.json of a LoRA adapter: read strictly, so that nothing in it is passed over."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mindbatch.checkpoint.faults import MAX_LINES, did_you_mean, raise_if_any, shown
from mindbatch.checkpoint.json_object import read_json_object
from mindbatch.errors import CheckpointError

ADAPTER_CONFIG = "adapter_config.json"
_MAX_BYTES = 1 << 20
MAX_RANK = 1 << 16
MAX_TARGETS = 1000

# What does not change the product of two matrices.
# fmt: off
_IRRELEVANT = frozenset({
    "auto_mapping", "base_model_name_or_path", "corda_config", "ensure_weight_tying", "eva_config",
    "exclude_modules", "inference_mode", "loftq_config", "lora_dropout", "megatron_config", "megatron_core",
    "peft_version", "pet_type", "qalora_group_size", "revision", "runtime_config",
})
_READ = frozenset({
    "bias", "fan_in_fan_out", "init_lora_weights", "layers_pattern", "layers_to_transform", "lora_alpha",
    "lora_rank", "peft_type", "r", "target_modules", "task_type", "use_rslora",
})
# Allowed only when null, false or empty: each of them changes the network in another way.
_UNSUPPORTED = {
    "alora_invocation_tokens": "activation from a token on",
    "alpha_pattern": "an alpha of its own for some modules",
    "arrow_config": "routing between adapters",
    "layer_replication": "layers that are there several times",
    "lora_bias": "biases of the low-rank matrices",
    "modules_to_save": "whole modules beside the low-rank matrices, such as a classification head",
    "rank_pattern": "a rank of its own for some modules",
    "target_parameters": "parameters instead of modules",
    "trainable_token_indices": "trained rows of the embedding",
    "use_dora": "DoRA",
    "use_qalora": "QALoRA",
}
# fmt: on
# These begin by changing the base weights, so that the saved matrices fit another base.
_CHANGED_BASES = ("pissa", "olora", "corda", "loftq")
_TASKS = (None, "CAUSAL_LM", "FEATURE_EXTRACTION")


@dataclass(frozen=True)
class LoraSettings:
    """What an adapter says of itself.

    targets: names, or ends of names, of modules; () where they are a pattern, which is not interpreted.
    all_layers: whether the targets are meant in every layer. given: the scaling, where alpha does not say it.
    """

    rank: int
    alpha: float
    rank_stabilised: bool = False
    fan_in_fan_out: bool = False
    targets: tuple[str, ...] = ()
    all_layers: bool = True
    given: float | None = None

    @property
    def scaling(self) -> float:
        """The factor on B @ A: alpha / rank, or alpha / sqrt(rank) (rsLoRA, Kalajdzievski 2023)."""
        if self.given is not None:
            return self.given
        return self.alpha / (math.sqrt(self.rank) if self.rank_stabilised else self.rank)


def read_lora_config(path: Path, scaling: float | None = None) -> LoraSettings:
    """The settings of an adapter_config.json of PEFT or MindFormers.

    scaling: as the user says it, for a file without lora_alpha; both must agree.

    Raises:
        CheckpointError: lists every key that is wrong, not supported or not understood.
    """
    content = read_json_object(path, _MAX_BYTES)
    faults = [*_kind_faults(content), *_number_faults(content, scaling), *_other_faults(content)]
    raise_if_any(faults, str(path))
    settings = _settings(content, scaling)
    if scaling is not None and not math.isclose(scaling, settings.scaling, rel_tol=1e-6):
        raise CheckpointError(
            f"{path}: says the scaling {settings.scaling:g} (lora_alpha by r), given was {scaling:g}; "
            "remove one"
        )
    return settings


def _settings(content: Mapping[str, Any], scaling: float | None) -> LoraSettings:
    targets, alpha = content.get("target_modules"), content.get("lora_alpha")
    return LoraSettings(
        rank=_rank(content),
        alpha=0.0 if alpha is None else float(alpha),
        given=scaling if alpha is None else None,
        rank_stabilised=content.get("use_rslora") or False,
        fan_in_fan_out=content.get("fan_in_fan_out") or False,
        targets=_plain_targets(targets),
        all_layers=content.get("layers_to_transform") is None and not content.get("exclude_modules"),
    )


def _rank(content: Mapping[str, Any]) -> Any:
    return content.get("r", content.get("lora_rank"))


def _kind_faults(content: Mapping[str, Any]) -> Iterator[str]:
    kind, task = content.get("peft_type", "LORA"), content.get("task_type")
    if kind != "LORA":
        yield f"peft_type={shown(kind)}: must be 'LORA'"
    if task not in _TASKS:
        head = ", which has a classification head" if task in ("SEQ_CLS", "TOKEN_CLS") else ""
        yield f"task_type={shown(task)}{head}: must be 'CAUSAL_LM'"
    if content.get("bias", "none") != "none":
        yield f"bias={shown(content['bias'])}: must be 'none'; trained biases are not supported"
    start = content.get("init_lora_weights")
    if isinstance(start, str) and start.lower().startswith(_CHANGED_BASES):
        yield (
            f"init_lora_weights={shown(start)}: the base weights were changed at the start; convert the "
            "adapter to plain LoRA first (PEFT's path_initial_model_for_weight_conversion)"
        )


def _number_faults(content: Mapping[str, Any], scaling: float | None) -> Iterator[str]:
    rank, alpha = _rank(content), content.get("lora_alpha")
    if not isinstance(rank, int) or isinstance(rank, bool) or not 1 <= rank <= MAX_RANK:
        yield f"r={shown(rank)}: must be a whole number of 1 to {MAX_RANK}"
    if "r" in content and content.get("lora_rank", rank) != rank:
        yield f"r={shown(rank)} and lora_rank={shown(content['lora_rank'])}: must be the same"
    is_missing = alpha is None and scaling is not None
    if not is_missing and (
        not isinstance(alpha, int | float) or isinstance(alpha, bool) or not 0 < alpha < 1e9
    ):
        yield f"lora_alpha={shown(alpha)}: must be a number above 0; the scaling is lora_alpha / r"
    for key in ("use_rslora", "fan_in_fan_out"):
        if not isinstance(content.get(key) or False, bool):
            yield f"{key}={shown(content[key])}: must be true or false"


def _other_faults(content: Mapping[str, Any]) -> Iterator[str]:
    targets = content.get("target_modules")
    if isinstance(targets, list):
        if not targets or not all(isinstance(each, str) and each for each in targets):
            yield f"target_modules={shown(targets)}: must be names of modules"
    elif targets is not None and not isinstance(targets, str):
        yield f"target_modules={shown(targets)}: must be names of modules, or a pattern"
    if isinstance(targets, list | str) and len(_listed(targets)) > MAX_TARGETS:
        yield f"target_modules: {len(_listed(targets))} names; at most {MAX_TARGETS} are allowed"
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


def _listed(targets: list[str] | str) -> list[str]:
    return targets if isinstance(targets, list) else targets.split("|")


def _plain_targets(targets: Any) -> tuple[str, ...]:
    """Names only; MindFormers writes patterns such as .*wq, of which the beginning says nothing."""
    if targets is None or targets == "all-linear":
        return ()
    plain = [item.removeprefix(".*") for item in _listed(targets)]
    return tuple(plain) if all(each.replace("_", "").replace(".", "").isalnum() for each in plain) else ()
