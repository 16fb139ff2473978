"""The keys of a run over a dataset, which `mindbatch batch` has, and what they may be together."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from mindbatch.config.error_log import shown
from mindbatch.config.model_task import ModelTaskConfig
from mindbatch.config.paths import folder_error, resolved, run_folder_error
from mindbatch.config.schema import SchemaKeys, option, private_option, section
from mindbatch.dataset.data_config import DataConfig, data_errors, resolve_data
from mindbatch.engine.request import GENERATION_FIELDS
from mindbatch.fields import kinds as kind
from mindbatch.message_formats import NAMES
from mindbatch.remote.address import is_remote, write_error

RESULT_FIELDS = frozenset(
    ("key", "prompt", "generations", "prompt_tokens", "generated_tokens", "prompt_logprobs")
)
CSV_FIELDS = RESULT_FIELDS | {*GENERATION_FIELDS}
"""Fields that results have already: no column of the data can have such a name there."""
ADAPTER = "adapter"
"""Field that results have besides where there are adapters."""
MESSAGE_FORMATS = ("auto", "none", *NAMES)
"""Choices of how a model writes reasoning and tool calls."""
LOCAL_FOLDER = (
    "a run and its ledger are in a local folder; give one, and output.upload=ADDRESS to upload the results"
)
NO_RUN_FOLDER = "output.dir: must be given: the folder of the run, new or to be resumed"


@dataclass
class BatchOutputConfig:
    """Folder and content of the results."""

    dir: str | None = option(
        None, "folder of the run; the same command with the same folder resumes it", is_path=True
    )
    format: str = option(
        "auto",
        "format of the results; auto is openai for requests in OpenAI's format, else jsonl",
        kind.choice("auto", "jsonl", "parquet", "csv", "openai"),
    )
    prompt: bool = option(True, "write the prompt beside its generations")
    model: str | None = option(
        None, "in OpenAI's format, the model's name in requests and responses; null: the name of its folder"
    )
    message_format: str = option(
        "auto",
        "in OpenAI's format, how the model writes reasoning and tool calls; auto goes by its chat template, "
        "none leaves them in the text",
        kind.choice(*MESSAGE_FORMATS),
    )
    token_ids: bool = option(False, "write the token ids beside the text")
    columns: Any = option(
        (),
        "columns of the data to copy to the results",
        kind.texts("names of columns", "[label, source]"),
    )
    on_mismatch: str = option(
        "refuse",
        "what to do if the folder has a run with other settings or rows",
        kind.choice("refuse", "new_dir", "overwrite"),
    )
    upload: str | None = option(
        None,
        "address that the finished results are uploaded to, too: hf://datasets/ORG/NAME[@BRANCH]/FOLDER, "
        "s3://BUCKET/FOLDER, gs://BUCKET/FOLDER",
    )
    private: bool = private_option()


@dataclass
class BatchConfig(ModelTaskConfig):
    """The keys of a run, and of every task that continues or plans one."""

    advises_sampling: ClassVar[bool] = True
    records_seed: ClassVar[bool] = True

    data: DataConfig = section(DataConfig)
    output: BatchOutputConfig = section(BatchOutputConfig)
    progress: str = option(
        "auto",
        "how progress is shown; auto is rich on a terminal, else a plain line every 30 s",
        kind.choice("auto", "none", "plain", "rich"),
    )

    @property
    def is_private(self) -> bool:
        return self.output.private

    @property
    def model_name(self) -> str:
        """The model's own name in OpenAI's requests and responses."""
        return self.output.model or Path(self.model.checkpoint_name_or_path or "").name

    def resolve_paths(self) -> list[str]:
        errors = super().resolve_paths()
        resolve_data(self.data, errors)
        if self.output.dir is None:
            errors.append(NO_RUN_FOLDER)
        if is_remote(self.output.dir):
            errors.append(f"output.dir={shown(self.output.dir)}: {LOCAL_FOLDER}")
        else:
            self.output.dir = resolved("output.dir", self.output.dir, self.folder_error, errors)
        return errors

    def folder_error(self, path: Path) -> str | None:
        """Explains why `output.dir` cannot be used; None if it can."""
        return run_folder_error(path)

    def run_errors(self, keys: SchemaKeys) -> Iterable[str]:
        yield from super().run_errors(keys)
        yield from data_errors(self.data)
        yield from _output_errors(self.output, self.data)
        yield from _adapter_errors(self)
        if self.is_continued and self.output.on_mismatch != "refuse":
            yield (
                f"output.on_mismatch={self.output.on_mismatch}: a run can only be continued as it was begun; "
                "remove it"
            )


@dataclass
class BatchTaskConfig(BatchConfig):
    """The keys of `mindbatch batch`."""

    continuing_key: ClassVar[str] = "retry"

    retry: bool = option(
        False, "run the rows again that failed in output.dir, with the settings of that run", is_kept=False
    )

    @property
    def is_continued(self) -> bool:
        return self.retry


@dataclass
class RetryConfig(BatchTaskConfig):
    """The keys of `mindbatch retry`."""

    positional: ClassVar[tuple[str, ...]] = ("output.dir",)


@dataclass
class ReplayConfig(BatchConfig):
    """The keys of `mindbatch replay`."""

    positional: ClassVar[tuple[str, ...]] = ("output.dir", "key")
    continues_run: ClassVar[bool] = True
    advises_sampling: ClassVar[bool] = False

    key: str | None = option(None, "key of the row to run again")

    def folder_error(self, path: Path) -> str | None:
        return folder_error(path)  # it is only read

    def run_errors(self, keys: SchemaKeys) -> Iterable[str]:
        yield from super().run_errors(keys)
        if not self.key:
            yield "key: must be given: the key of the row to run again"


def _output_errors(output: BatchOutputConfig, data: DataConfig) -> Iterator[str]:
    if output.upload is not None and (problem := write_error(output.upload)):
        yield f"output.upload={shown(output.upload)}: {problem}"
    if output.format == "openai" and data.format not in ("auto", "openai"):
        yield (
            f"output.format=openai: answers requests in OpenAI's format, not data.format={data.format}; "
            "use jsonl, parquet or csv"
        )
    yield from _column_errors(output, data)


def _adapter_errors(config: BatchConfig) -> Iterator[str]:
    column, has_adapters = config.data.adapter_column, bool(config.lora.adapters)
    if column is not None and has_adapters and config.lora.is_merged:
        yield (
            f"data.adapter_column={shown(column)}: not with lora.mode=merge, where every row has the one "
            "adapter; remove it, or use lora.mode=live"
        )
    if has_adapters and ADAPTER in config.output.columns:
        yield f"output.columns: {ADAPTER}: results have a field of that name already"


def _column_errors(output: BatchOutputConfig, data: DataConfig) -> Iterator[str]:
    names = output.columns
    if not names:
        return
    if "openai" in (output.format, data.format):
        yield (
            "output.columns: OpenAI's requests have no columns, nor have its responses; remove it, or let "
            "custom_id tell what the rows are"
        )
    for name in dict.fromkeys(name for name in names if names.count(name) > 1):
        yield f"output.columns: {shown(name)} is given twice"
    taken = CSV_FIELDS if output.format == "csv" else RESULT_FIELDS
    for name in dict.fromkeys(name for name in names if name in taken):
        yield f"output.columns: {name}: results have a field of that name already"
