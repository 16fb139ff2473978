"""What the options of `mindbatch reshard` may be together."""

from collections.abc import Iterator
from pathlib import Path

from mindbatch.config.reshard_schema import ReshardConfig
from mindbatch.config.settings import shown

UNROUNDED = ("keep", "float32")


def reshard_faults(config: ReshardConfig) -> Iterator[str]:
    """Every fault but those of single values and of missing paths."""
    target = config.target
    if target.names == "mindformers":
        yield "target.names=mindformers: not available in this version; use hf"
    if target.overflow == "infinity" and target.dtype in UNROUNDED:
        yield f"target.overflow=infinity: has no effect with target.dtype={shown(target.dtype)}; remove it"
    if config.source_strategy is not None and config.source_pipeline_stage is not None:
        yield "source_pipeline_stage: has no effect with source_strategy, which says it; remove it"
    if config.source is not None and target.dir is not None:
        yield from _overlaps(Path(config.source).resolve(), Path(target.dir).resolve())


def _overlaps(source: Path, target: Path) -> Iterator[str]:
    """A target that is its own source, or around it, would go before it has been read."""
    if source.is_relative_to(target):
        where = "is the source" if source == target else f"holds the source {source}"
        yield f"target.dir={target}: {where}; give another folder"
