"""The keys of `mindbatch reshard`."""

from dataclasses import dataclass

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
    replace: bool = option(False, "another reshard in target.dir gives way, once the new one is whole")


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
    workers: int | None = option(
        None, "processes; null: as many as processors, at most 8, and 1 for little", minimum=1
    )
    dry_run: bool = option(False, "print what would be done, and write nothing")
    verify: bool = option(False, "read everything back and compare each element with the source")
    verbose: bool = option(False, "show tracebacks")
    target: ReshardTargetConfig = section(ReshardTargetConfig)

    @property
    def wants_verbose(self) -> bool:
        return self.verbose
