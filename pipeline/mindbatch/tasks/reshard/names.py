"""Chooses the names of tensors in `mindbatch reshard`: those of Hugging Face or of MindFormers."""

from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path

from mindbatch.architecture.architecture import Architecture
from mindbatch.checkpoint.folders.resharded import noted_settings
from mindbatch.checkpoint.names.dialect import Dialect, Heads, Options, Sections
from mindbatch.checkpoint.names.registry import (
    MCORE_MODEL_TYPES,
    detected_options,
    dialect,
    has_fused_form,
    has_mindformers_names,
    heads_of,
)
from mindbatch.checkpoint.names.renamed_files import as_mindformers, by_strategy
from mindbatch.checkpoint.placement.regions import Placements, RankFiles, as_rank_files
from mindbatch.io.errors import ConfigError
from mindbatch.tasks.reshard.schema import ReshardConfig

MINDFORMERS, MCORE = "mindformers", "mcore"
_NEEDS_CONFIG = "needs the model's config.json; give source_config=FOLDER"


@dataclass(frozen=True)
class Naming:
    """MindFormers' names for a model. keys: prefix of its settings in messages, `source.` or `target.`."""

    dialect: Dialect
    heads: Heads
    options: Options
    keys: str

    def ranks(self, placements: Placements, model_parallel: int, num_ranks: int) -> RankFiles:
        """Describes rank files with these placements, with `model_parallel` shards of each tensor.

        Raises ConfigError if key/value heads in fused tensors would be on several ranks.
        """
        if model_parallel > self.heads.kv_heads:
            self._refuse_fused(model_parallel)
        return as_mindformers(self.dialect, self.heads, placements, num_ranks)

    def _refuse_fused(self, model_parallel: int) -> None:
        kv_heads = self.heads.kv_heads
        shares_none = (
            f"model_parallel={model_parallel} is above the {kv_heads} key/value heads of this model, and "
            f"fused tensors share none between ranks; allowed: up to {kv_heads}"
        )
        if self.options.is_mcore:
            raise ConfigError(f"{self.keys}names={MCORE}: {shares_none}, or other names")
        if self.options.qkv_concat:
            raise ConfigError(f"{self.keys}qkv_concat=true: {shares_none}, or {self.keys}qkv_concat=false")
        if any(
            rule.sections is Sections.QKV and len(rule.original.names) == 1 for rule in self.dialect.rules
        ):
            raise ConfigError(f"{self.keys}names={MINDFORMERS}: {shares_none}, or Hugging Face's names")

    def cut(self, stored: Placements, num_ranks: int) -> RankFiles:
        """Describes rank files that a strategy has sharded. stored: its placements, by MindFormers' names.

        Raises ConfigError if each rank has fused its own sections, which a strategy does not describe.
        """
        if self.options.qkv_concat and not self.options.grouped:
            raise ConfigError(
                f"{self.keys}qkv_grouped=false: does not go with source_strategy, by which parts of fused "
                "tensors are whole groups; allowed without it: rank folders cut as this project cuts them"
            )
        return by_strategy(self.dialect, self.heads, stored, num_ranks)


def source_naming(
    config: ReshardConfig, architecture: Architecture | None, path: Path, names: Collection[str]
) -> Naming | None:
    """Chooses the naming of a source's tensors; None for Hugging Face's names, or if names are not needed.

    Raises:
        ConfigError: an option has no effect on these names or this model type.
    """
    settings = {
        key: value
        for key in ("source_qkv_concat", "source_qkv_grouped")
        if (value := getattr(config, key)) is not None
    }
    if architecture is None:
        if settings or config.source_names == MINDFORMERS:
            keys = ", ".join([*settings, *(["source_names"] if config.source_names == MINDFORMERS else [])])
            raise ConfigError(f"{keys}: {_NEEDS_CONFIG}")
        return None
    model_type = architecture.model_type
    is_theirs = config.source_names == MINDFORMERS or (
        config.source_names == "auto" and has_mindformers_names(model_type, names)
    )
    if not is_theirs:
        if settings:
            raise ConfigError(
                f"{', '.join(settings)}: has no effect, for the tensors of {path} have Hugging Face names; "
                f"remove it, or give source_names={MINDFORMERS}"
            )
        return None
    if model_type not in MCORE_MODEL_TYPES:
        _refuse_unknown(model_type, "source_qkv_concat" if settings.get("source_qkv_concat") else None)
    grouped = config.source_qkv_grouped
    if grouped is None:
        grouped = noted_settings(path).get("qkv_grouped") is not False
    options = Options(grouped=grouped, num_layers=architecture.num_layers)
    options = detected_options(model_type, names, options)
    if config.source_qkv_concat is not None:
        options = replace(options, qkv_concat=config.source_qkv_concat)
    return Naming(dialect(model_type, options), heads_of(architecture), options, "source_")


def target_naming(config: ReshardConfig, architecture: Architecture | None) -> Naming | None:
    """Chooses the naming of the target's tensors; None for Hugging Face's names.

    Raises:
        ConfigError: the model is unknown, has no MindFormers names, or lacks a head that MindFormers needs;
            or an option has no effect.
    """
    target = config.target
    if target.names not in (MINDFORMERS, MCORE):
        return None
    if architecture is None:
        raise ConfigError(f"target.names={target.names}: {_NEEDS_CONFIG}")
    model_type = architecture.model_type
    if target.names == MINDFORMERS:
        _refuse_unknown(model_type, "target.qkv_concat" if target.qkv_concat else None)
    options = Options(
        qkv_concat=target.qkv_concat,
        grouped=target.qkv_grouped,
        num_layers=architecture.num_layers,
        is_mcore=target.names == MCORE,
    )
    rules = dialect(model_type, options)
    if rules.has_own_head and architecture.tied:
        raise ConfigError(
            f"target.names={MINDFORMERS}: MindFormers has the head of a {model_type} beside its embedding; "
            "here they are one; allowed: a source with lm_head.weight, whose config.json says "
            "tie_word_embeddings=false"
        )
    return Naming(rules, heads_of(architecture), options, "target.")


def named(naming: Naming | None, placements: Placements, model_parallel: int, num_ranks: int) -> RankFiles:
    return (
        naming.ranks(placements, model_parallel, num_ranks)
        if naming
        else as_rank_files(placements, num_ranks)
    )


def _refuse_unknown(model_type: str, fused_by: str | None) -> None:
    """Raises ConfigError for a type without MindFormers names, or without the requested fused tensors."""
    dialect(model_type)
    if fused_by is not None and not has_fused_form(model_type):
        raise ConfigError(
            f"{fused_by}=true: has no effect for model type {model_type}, which MindFormers has in one form "
            "only; remove it"
        )
