"""The keys of the tasks that run a dataset: batch, plan, retry and replay."""

from dataclasses import dataclass
from typing import Any, ClassVar

from mindbatch.config.layout_schema import LayoutConfig
from mindbatch.config.model_schema import ModelConfig, ModelTaskConfig
from mindbatch.config.schema_fields import option, section


@dataclass
class BatchModelConfig(ModelConfig):
    """Which model, and how it is held."""

    batch_size: int = option(
        32, "largest number of sequences in one step; more of them are faster and need more cache", minimum=1
    )


@dataclass
class DataConfig:
    """Which rows, and how a row becomes a prompt."""

    path: str | None = option(
        None, "file, folder or pattern (data/*.jsonl) of the rows; - is standard input", is_path=True
    )
    format: str = option(
        "auto",
        "how the files are read; auto goes by their names (.jsonl, .csv.gz, ...)",
        choices=("auto", "jsonl", "json", "csv", "tsv", "text", "parquet", "openai"),
    )
    key_column: str | None = option(
        None, "column that names a row, different in every row; null: the row's number, from 0"
    )
    prompt_column: str | None = option(
        None, "column of the prompt; null without another source: prompt, or else messages"
    )
    messages_column: str | None = option(None, "column of a chat like [{role: user, content: Hi}]")
    template: str | None = option(None, "prompt with the columns filled in, by jinja2: Q: {{ question }}")
    template_file: str | None = option(None, "file that holds the template", is_path=True)
    chat: bool = option(False, "send each prompt as a user's message through the chat template")
    system: str | None = option(None, "system message put before each prompt; needs chat=true or messages")
    tools: Any = option(
        None,
        "what the chat template is given as tools",
        accepts="list of JSON objects, JSON file that holds it, or null",
        is_path=True,
    )
    tools_column: str | None = option(None, "column of a row's own tools, a list as in data.tools")
    chat_template_kwargs: Any = option(
        None,
        "further variables of the chat template, like {enable_thinking: false}",
        accepts="mapping or null",
    )
    chat_template_kwargs_column: str | None = option(
        None, "column of a row's own variables of the chat template; they go before those of the run"
    )
    decoding_column: str | None = option(
        None, "column of a row's own decoding parameters, like {temperature: 0.7}"
    )
    limit: int | None = option(None, "most rows to take; null: all", minimum=1)
    skip: int = option(0, "rows to leave out at the beginning", minimum=0)
    shuffle_seed: int | None = option(
        None, "take the rows in an order drawn with this seed; null: as they come", minimum=0
    )
    filter_keys: Any = option(
        None,
        "take these rows only",
        accepts="list of keys, file with a key on each line, or null",
        is_path=True,
    )
    max_line_bytes: str = option("10MiB", "largest row that is read; a larger one is an error of that row")


@dataclass
class BatchOutputConfig:
    """Where the results go, and what they hold."""

    dir: str | None = option(
        None, "folder of the run; the same command with the same folder resumes it", is_path=True
    )
    format: str = option(
        "auto",
        "of the results; auto is openai for requests in OpenAI's format, else jsonl",
        choices=("auto", "jsonl", "parquet", "csv", "openai"),
    )
    prompt: bool = option(True, "write the prompt beside its generations")
    token_ids: bool = option(False, "write the token ids beside the text")
    columns: Any = option(
        (), "columns of the data that stand beside the results", accepts="list of names of columns"
    )
    on_mismatch: str = option(
        "refuse",
        "what to do when the folder holds a run with other settings or rows",
        choices=("refuse", "new_dir", "overwrite"),
    )
    tensorboard: bool = option(False, "write the metrics for TensorBoard too")


@dataclass
class BatchConfig(ModelTaskConfig):
    """The keys of `mindbatch batch`."""

    model: BatchModelConfig = section(BatchModelConfig)
    data: DataConfig = section(DataConfig)
    output: BatchOutputConfig = section(BatchOutputConfig)
    progress: str = option(
        "auto",
        "how progress is shown; auto is rich on a terminal, else a plain line every 30 s",
        choices=("auto", "none", "plain", "rich"),
    )


@dataclass
class PlanConfig(BatchConfig):
    """The keys of `mindbatch plan`."""

    rate: float | None = option(None, "generated tokens/s to reckon with; null: no estimate of the time")
    calibrate: bool = option(False, "estimate the time by running a few of the rows, 10 s at most")
    report: str = option("text", "text or json", choices=("text", "json"))
    layout: LayoutConfig = section(LayoutConfig)

    @property
    def asks_mindspore(self) -> bool:
        """Whether the plan is MindSpore's layout of a MindFormers model, and nothing else."""
        return self.model.provider == "mindformers"

    @property
    def has_ranks(self) -> bool:
        """Whether there are several ranks, where no batch can be run in this version."""
        parallel = self.parallel
        return max(parallel.data_parallel, parallel.model_parallel, parallel.pipeline_stage) > 1

    @property
    def plans_ranks(self) -> bool:
        """Whether the plan says what each rank holds of a model of this project."""
        return not self.asks_mindspore and (self.has_ranks or self.layout.dir is not None)

    @property
    def needs_data(self) -> bool:
        """Whether the keys of a batch have a part in the plan."""
        return not self.asks_mindspore and (not self.plans_ranks or self.data.path is not None)


@dataclass
class RetryConfig(BatchConfig):
    """The keys of `mindbatch retry`."""

    continues_run: ClassVar[bool] = True


@dataclass
class ReplayConfig(BatchConfig):
    """The keys of `mindbatch replay`."""

    continues_run: ClassVar[bool] = True

    key: str | None = option(None, "key of the row to run again")
