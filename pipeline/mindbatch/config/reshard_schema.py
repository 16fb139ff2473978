"""The keys of `mindbatch reshard`."""

from dataclasses import dataclass
from typing import Any

from mindbatch.config.model_schema import KEY_LIST
from mindbatch.config.schema_fields import TaskConfig, option, section


@dataclass
class ReshardTargetConfig:
    """What is made of the source."""

    dir: str | None = option(
        None, "folder to make: rank_0, rank_1 ..., or a Hugging Face folder for one rank", is_path=True
    )
    model_parallel: int = option(1, "slices that each tensor is cut into", minimum=1)
    pipeline_stage: int = option(1, "stages that the layers are divided over", minimum=1)
    format: str = option("safetensors", "of the files of tensors", choices=("safetensors", "ckpt"))
    dtype: str = option(
        "keep",
        "of float32, float16 and bfloat16 tensors; rounded to the nearest, ties to even",
        choices=("keep", "float32", "float16", "bfloat16"),
    )
    overflow: str = option(
        "refuse",
        "what becomes of values that are too large for target.dtype",
        choices=("refuse", "infinity"),
    )
    names: str = option(
        "hf", "names of the tensors: Hugging Face's or MindFormers'", choices=("hf", "mindformers")
    )
    qkv_concat: bool = option(
        False, "MindFormers' option: query, key and value, or gate and up, are one tensor each"
    )
    qkv_grouped: bool = option(
        True,
        "fused tensors are group by group, as in MindFormers 1.9; false: joined on each rank, as before it",
    )
    replace: bool = option(False, "another reshard in target.dir gives way, once the new one is whole")


@dataclass
class ReshardLoraConfig:
    """An adapter that is merged on the way."""

    merge: str | None = option(
        None, "folder of a LoRA adapter, of PEFT or MindFormers, to add to the weights", is_path=True
    )
    scaling: float | None = option(
        None, "factor of the adapter, where its adapter_config.json has no lora_alpha; null: as that says"
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
        None, "stages of rank folders without a strategy; null: as reshard noted there, else 1", minimum=1
    )
    source_names: str = option(
        "auto",
        "names of the source's tensors; auto: as more of them are",
        choices=("auto", "hf", "mindformers"),
    )
    source_qkv_concat: bool | None = option(
        None, "whether a source with MindFormers' names has fused tensors; null: as its names say"
    )
    source_qkv_grouped: bool | None = option(
        None, "as target.qkv_grouped, of the source; null: as reshard noted there, else true"
    )
    ignore_config_keys: Any = option(
        (), "keys of config.json that change nothing, though MindBatch does not know them", accepts=KEY_LIST
    )
    workers: int | None = option(
        None, "processes; null: as many as processors, at most 8, and 1 for little", minimum=1
    )
    dry_run: bool = option(False, "print what would be done, and write nothing")
    verify: Any = option(
        False,
        "read everything back and compare each element with the source; logits: run both models, too",
        accepts="true, false or logits",
    )
    verbose: bool = option(False, "show tracebacks")
    target: ReshardTargetConfig = section(ReshardTargetConfig)
    lora: ReshardLoraConfig = section(ReshardLoraConfig)

    @property
    def wants_verbose(self) -> bool:
        return self.verbose

    @property
    def reads_back(self) -> bool:
        """Whether each element is compared with the source."""
        return self.verify is True or self.compares_logits

    @property
    def compares_logits(self) -> bool:
        """Whether the models before and after are run."""
        return bool(self.verify == "logits")
