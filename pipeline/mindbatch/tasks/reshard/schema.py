"""The keys of `mindbatch reshard`."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mindbatch.config.error_log import shown
from mindbatch.config.lora_schema import LARGEST_SCALING
from mindbatch.config.paths import (
    adapter_error,
    any_path,
    checkpoint_error,
    model_folder_error,
    resolved,
    run_folder_error,
)
from mindbatch.config.schema import SchemaKeys, TaskConfig, excludes, needs, option, section
from mindbatch.fields import kinds as kind
from mindbatch.fields.field import Need

ITERATION_FORMAT = "iteration"
_ROUNDING = Need(
    lambda config: config.target.dtype not in ("keep", "float32") or config.lora.merge is not None,
    "target.dtype",
)
NO_SOURCE = "source: must be given: a model folder, a file of tensors, or a folder of rank folders"
NO_TARGET = "target.dir: must be given: the folder to make"


@dataclass
class ReshardTargetConfig:
    """The checkpoint to write."""

    dir: str | None = option(
        None, "folder to make: rank_0, rank_1 ..., or a Hugging Face folder for one rank", is_path=True
    )
    model_parallel: int = option(1, "number of tensor-parallel ranks", kind.count(1))
    pipeline_stage: int = option(1, "number of pipeline stages", kind.count(1))
    format: str = option(
        "safetensors",
        "format of the files of tensors; iteration: MindFormers' Checkpoint 2.0, with names=mcore",
        kind.choice("safetensors", "ckpt", ITERATION_FORMAT),
    )
    dtype: str = option(
        "keep",
        "new type of float tensors; values are rounded to the nearest, ties to even",
        kind.choice("keep", "float32", "float16", "bfloat16"),
    )
    overflow: str = option(
        "refuse",
        "what to do with values that are too large for target.dtype",
        kind.choice("refuse", "infinity"),
        needs=(_ROUNDING,),
    )
    names: str = option(
        "hf",
        "names of the tensors: Hugging Face's, MindFormers', or those of its Mcore models, which are fused",
        kind.choice("hf", "mindformers", "mcore"),
    )
    qkv_concat: bool = option(
        False,
        "MindFormers' option: query, key and value, or gate and up, are one tensor each",
        needs=(needs("target.names", "mindformers"),),
    )
    qkv_grouped: bool = option(
        True,
        "fused tensors are group by group, as in MindFormers 1.9; false: joined on each rank, as before it",
        needs=(needs("target.qkv_concat", True),),
    )
    replace: bool = option(False, "replace another reshard in target.dir, once the new one is complete")


@dataclass
class ReshardLoraConfig:
    """An adapter to merge into the checkpoint."""

    merge: str | None = option(
        None, "a LoRA adapter of PEFT or MindFormers, folder or file, to add to the weights", is_path=True
    )
    scaling: float | None = option(
        None,
        "factor of the adapter, where its adapter_config.json has no lora_alpha; null: as that says",
        needs=(needs("lora.merge"),),
    )


@dataclass
class ReshardConfig(TaskConfig):
    """The keys of `mindbatch reshard`."""

    source: str | None = option(
        None, "a Hugging Face folder, a .safetensors or .ckpt file, or a folder of rank folders", is_path=True
    )
    source_config: str | None = option(
        None, "folder of the model's config.json; null: it is beside the source", is_path=True
    )
    source_strategy: str | None = option(
        None, "MindSpore's strategy file, or a folder of them, by which rank folders were cut", is_path=True
    )
    source_pipeline_stage: int | None = option(
        None,
        "stages of rank folders without a strategy; null: as reshard noted there, else 1",
        kind.count(1),
        needs=(excludes("source_strategy"),),
    )
    source_names: str = option(
        "auto",
        "names of the source's tensors; auto: those that more of them have",
        kind.choice("auto", "hf", "mindformers"),
    )
    source_qkv_concat: bool | None = option(
        None,
        "whether a source with MindFormers' names has fused tensors; null: as its names say",
        needs=(excludes("source_names", "hf"),),
    )
    source_qkv_grouped: bool | None = option(
        None,
        "as target.qkv_grouped, of the source; null: as reshard noted there, else true",
        needs=(excludes("source_names", "hf"), excludes("source_qkv_concat", False)),
    )
    ignore_config_keys: Any = option(
        (),
        "unknown keys of config.json to ignore, because they change nothing of the computation",
        kind.texts("keys of config.json"),
    )
    workers: int | None = option(
        None, "threads; null: one more than processors, at most 8, and 1 for little", kind.count(1)
    )
    dry_run: bool = option(False, "print what would be done, and write nothing")
    verify: Any = option(
        False,
        "read everything back and compare each element with the source; logits: run both models, too",
        kind.described("true, false or logits"),
    )
    verbose: bool = option(False, "show tracebacks")
    target: ReshardTargetConfig = section(ReshardTargetConfig)
    lora: ReshardLoraConfig = section(ReshardLoraConfig)

    @property
    def reads_back(self) -> bool:
        return self.verify is True or self.compares_logits

    @property
    def compares_logits(self) -> bool:
        return bool(self.verify == "logits")

    def resolve_paths(self) -> list[str]:
        errors = [] if self.source is not None else [NO_SOURCE]
        if self.target.dir is None and not self.dry_run:
            errors.append(NO_TARGET)
        self.source = resolved("source", self.source, checkpoint_error, errors, is_model=True)
        self.source_config = resolved(
            "source_config", self.source_config, model_folder_error, errors, is_model=True
        )
        self.source_strategy = resolved("source_strategy", self.source_strategy, checkpoint_error, errors)
        self.lora.merge = resolved("lora.merge", self.lora.merge, adapter_error, errors)
        error_of = any_path if self.dry_run else run_folder_error
        self.target.dir = resolved("target.dir", self.target.dir, error_of, errors)
        return errors

    def own_errors(self, keys: SchemaKeys) -> Iterable[str]:
        yield from reshard_errors(self)


def reshard_errors(config: ReshardConfig) -> Iterator[str]:
    """Yields the errors of values together."""
    target = config.target
    if target.format == ITERATION_FORMAT and target.names != "mcore":
        yield f"target.format={ITERATION_FORMAT}: is of Mcore models only; give target.names=mcore"
    yield from _lora_errors(config.lora)
    if not isinstance(config.verify, bool) and config.verify != "logits":
        yield f"verify={shown(config.verify)}: must be true, false or logits"
    if config.compares_logits and config.lora.merge is not None:
        yield (
            "verify=logits: not with lora.merge, for the source's logits are those without the adapter; "
            "use verify=true"
        )
    if config.source is not None and target.dir is not None:
        yield from _overlaps(Path(config.source).resolve(), Path(target.dir).resolve())


def _lora_errors(lora: ReshardLoraConfig) -> Iterator[str]:
    if lora.scaling is None:
        return
    if not 0 < abs(lora.scaling) < LARGEST_SCALING:
        yield f"lora.scaling={shown(lora.scaling)}: must be a number other than 0, below {LARGEST_SCALING:g}"


def _overlaps(source: Path, target: Path) -> Iterator[str]:
    """Refuses a target that is its own source or contains it: overwriting would delete the source unread. A
    target within the source would become part of it, and be deleted with it."""
    where = None
    if source == target:
        where = "is the source"
    elif source.is_relative_to(target):
        where = f"holds the source {source}"
    elif target.is_relative_to(source):
        where = f"is within the source {source}, which stays as it is"
    if where:
        yield f"target.dir={target}: {where}; give another folder"
