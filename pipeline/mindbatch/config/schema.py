"""The typed schemas of every task: each key with its type, default, meaning and allowed range."""

from dataclasses import dataclass
from typing import Any, ClassVar

from mindbatch.config.batch_schema import (
    BatchConfig,
    BatchOutputConfig,
    DataConfig,
    PlanConfig,
    ReplayConfig,
    RetryConfig,
)
from mindbatch.config.model_schema import (
    DecodingConfig,
    ModelConfig,
    ModelTaskConfig,
    ParallelConfig,
    RuntimeConfig,
)
from mindbatch.config.schema_fields import LARGEST_COUNT, TaskConfig, option, section

__all__ = [
    "LARGEST_COUNT",
    "SCHEMAS",
    "BatchConfig",
    "BatchOutputConfig",
    "DataConfig",
    "DecodingConfig",
    "DiffConfig",
    "DoctorConfig",
    "GenerateConfig",
    "ModelConfig",
    "ModelTaskConfig",
    "OutputConfig",
    "ParallelConfig",
    "PlanConfig",
    "ReplayConfig",
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


@dataclass
class GenerateConfig(ModelTaskConfig):
    """The keys of `mindbatch generate`."""

    output: OutputConfig = section(OutputConfig)
    prompts: Any = option(
        None,
        "what to continue; a prompt is a text or a list of token ids",
        accepts="prompt, list of prompts or null",
    )
    prompts_file: str | None = option(
        None, "file with a prompt on each line; - is standard input", is_path=True
    )
    messages: Any = option(
        None, "chats, each a list like [{role: user, content: Hi}]", accepts="chat, list of chats or null"
    )
    chat: bool = option(False, "send each prompt as a user's message through the chat template")
    system: str | None = option(None, "system message put before each prompt; needs chat=true or messages")
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
    "batch": BatchConfig,
    "plan": PlanConfig,
    "retry": RetryConfig,
    "replay": ReplayConfig,
    "diff": DiffConfig,
    "runs": RunsConfig,
    "doctor": DoctorConfig,
}
