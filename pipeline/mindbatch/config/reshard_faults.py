"""What the options of `mindbatch reshard` may be together."""

import re
from collections.abc import Iterator
from pathlib import Path

from mindbatch.config.reshard_schema import ReshardConfig, ReshardLoraConfig
from mindbatch.config.settings import shown

UNROUNDED = ("keep", "float32")
LARGEST_SCALING = 1e9


def reshard_faults(config: ReshardConfig) -> Iterator[str]:
    """Every fault but those of single values and of missing paths."""
    target = config.target
    yield from _name_faults(config)
    yield from _lora_faults(config.lora)
    if not isinstance(config.verify, bool) and config.verify != "logits":
        yield f"verify={shown(config.verify)}: must be true, false or logits"
    if config.compares_logits and config.lora.merge is not None:
        yield (
            "verify=logits: not with lora.merge, for the source's logits are those without the adapter; "
            "use verify=true"
        )
    if target.overflow == "infinity" and target.dtype in UNROUNDED and config.lora.merge is None:
        yield f"target.overflow=infinity: has no effect with target.dtype={shown(target.dtype)}; remove it"
    if config.source_strategy is not None and config.source_pipeline_stage is not None:
        yield "source_pipeline_stage: has no effect with source_strategy, which says it; remove it"
    if config.source is not None and target.dir is not None:
        yield from _overlaps(Path(config.source).resolve(), Path(target.dir).resolve())


def _lora_faults(lora: ReshardLoraConfig) -> Iterator[str]:
    if lora.scaling is None:
        return
    if lora.merge is None:
        yield "lora.scaling: has no effect without lora.merge, the adapter's folder; remove it"
    if not 0 < abs(lora.scaling) < LARGEST_SCALING:
        yield f"lora.scaling={shown(lora.scaling)}: must be a number other than 0, below {LARGEST_SCALING:g}"


def _name_faults(config: ReshardConfig) -> Iterator[str]:
    """Options of MindFormers' names where there are none, or nothing is fused."""
    target = config.target
    if target.qkv_concat and target.names == "hf":
        yield "target.qkv_concat=true: has no effect with target.names=hf; remove it"
    if not target.qkv_grouped and not target.qkv_concat:
        yield "target.qkv_grouped=false: has no effect without target.qkv_concat=true; remove it"
    if config.source_names == "hf":
        for key in ("source_qkv_concat", "source_qkv_grouped"):
            if getattr(config, key) is not None:
                yield f"{key}: has no effect with source_names=hf; remove it"
    elif config.source_qkv_grouped is not None and config.source_qkv_concat is False:
        yield "source_qkv_grouped: has no effect with source_qkv_concat=false; remove it"


def _overlaps(source: Path, target: Path) -> Iterator[str]:
    """A target that is its own source, or around it, would go before it has been read."""
    if source.is_relative_to(target):
        where = "is the source" if source == target else f"holds the source {source}"
        yield f"target.dir={target}: {where}; give another folder"
    elif target.parent == source and re.fullmatch(r"rank_\d+", target.name):
        yield f"target.dir={target}: would be taken for a rank of the source; give another folder"
