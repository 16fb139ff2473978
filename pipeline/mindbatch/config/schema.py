"""The typed schemas of every task: each key with its type, default, meaning and allowed range."""

from dataclasses import dataclass
from typing import ClassVar

from mindbatch.config.batch_schema import (
    BatchConfig,
    BatchOutputConfig,
    DataConfig,
    PlanConfig,
    ReplayConfig,
    RetryConfig,
)
from mindbatch.config.compare_schema import CompareConfig
from mindbatch.config.inspect_schema import InspectConfig
from mindbatch.config.model_schema import (
    DecodingConfig,
    ModelConfig,
    ModelTaskConfig,
    ParallelConfig,
    RuntimeConfig,
)
from mindbatch.config.prompt_schema import PromptTaskConfig
from mindbatch.config.rank_table_schema import RankTableConfig
from mindbatch.config.reshard_schema import ReshardConfig
from mindbatch.config.schema_fields import LARGEST_COUNT, TaskConfig, option, section

__all__ = [
    "LARGEST_COUNT",
    "SCHEMAS",
    "BatchConfig",
    "BatchOutputConfig",
    "CompareConfig",
    "DataConfig",
    "DecodingConfig",
    "DiffConfig",
    "DoctorConfig",
    "GenerateConfig",
    "InspectConfig",
    "ModelConfig",
    "ModelTaskConfig",
    "OutputConfig",
    "ParallelConfig",
    "PlanConfig",
    "PromptTaskConfig",
    "RankTableConfig",
    "ReplayConfig",
    "ReshardConfig",
    "RetryConfig",
    "RunsConfig",
    "RuntimeConfig",
    "TaskConfig",
]


@dataclass
class OutputConfig:
    """Where the generations go."""

    format: str = option("text", "text, or json with token ids and timings", choices=("text", "json"))
    file: str | None = option(None, "file to write; null: standard output", is_path=True)
    overwrite: bool = option(False, "write over output.file if it is there")


@dataclass
class GenerateConfig(PromptTaskConfig):
    """The keys of `mindbatch generate`."""

    output: OutputConfig = section(OutputConfig)
    stream: bool = option(False, "print the text token by token")
    interactive: bool = option(False, "keep asking for prompts")


@dataclass
class DoctorConfig(TaskConfig):
    """The keys of `mindbatch doctor`."""

    format: str = option("text", "text or json", choices=("text", "json"))
    verbose: bool = option(False, "show the messages of MindSpore, and tracebacks")

    @property
    def wants_verbose(self) -> bool:
        return self.verbose


@dataclass
class DiffConfig(TaskConfig):
    """The keys of `mindbatch diff`."""

    positional: ClassVar[tuple[str, ...]] = ("first", "second")

    first: str | None = option(None, "folder of a run", is_path=True)
    second: str | None = option(None, "folder of the run to compare it with", is_path=True)
    limit: int = option(20, "most rows shown; all are compared and counted", minimum=0)
    format: str = option("text", "text or json", choices=("text", "json"))
    verbose: bool = option(False, "show tracebacks")

    @property
    def wants_verbose(self) -> bool:
        return self.verbose


@dataclass
class RunsConfig(TaskConfig):
    """The keys of `mindbatch runs`."""

    positional: ClassVar[tuple[str, ...]] = ("folder",)

    folder: str = option(".", "folder below which the runs are", is_path=True)
    format: str = option("text", "text or json", choices=("text", "json"))
    verbose: bool = option(False, "show tracebacks")

    @property
    def wants_verbose(self) -> bool:
        return self.verbose


SCHEMAS: dict[str, type[TaskConfig]] = {
    "generate": GenerateConfig,
    "compare": CompareConfig,
    "batch": BatchConfig,
    "plan": PlanConfig,
    "retry": RetryConfig,
    "replay": ReplayConfig,
    "diff": DiffConfig,
    "runs": RunsConfig,
    "reshard": ReshardConfig,
    "inspect": InspectConfig,
    "rank-table": RankTableConfig,
    "doctor": DoctorConfig,
}
