"""The columns of an evaluation: what is compared, and the run over the dataset that each of them is."""

import re
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import product
from pathlib import Path

from mindbatch.config.lora_schema import LoraConfig
from mindbatch.config.model_schema import DecodingConfig, ModelConfig
from mindbatch.config.model_task import SEED
from mindbatch.dataset.data_config import DataConfig
from mindbatch.evaluation import REFERENCE_FREE
from mindbatch.io.errors import ConfigError
from mindbatch.io.fault_lines import did_you_mean, shown
from mindbatch.run.batch_config import BatchConfig, BatchOutputConfig, save_as_written
from mindbatch.tasks.evaluate.schema import OWN_MODEL, EvaluateConfig

DECODING = "decoding"
"""The column of a request with its own decoding parameters: from where on its tokens are scored."""


@dataclass(frozen=True)
class Column:
    """One of the things that are compared.

    name: in the results: what it does not share with all others. checkpoint: the name of a model. adapter: of
    `lora.adapters`; None where there are none. decoding: the option.
    """

    name: str
    checkpoint: str
    decoding: str
    adapter: str | None = None

    @property
    def folder(self) -> str:
        """The name of its folder, whatever other columns there are."""
        return f"{self.scored_as}+{self.decoding}"

    @property
    def scored_as(self) -> str:
        """Key of what decides the likelihood of a given text; columns that differ in decoding share it."""
        return self.checkpoint if self.adapter is None else f"{self.checkpoint}+{_file_name(self.adapter)}"


def columns_of(config: EvaluateConfig) -> list[Column]:
    """Every checkpoint with every adapter and every decoding; `model` is the first one, where it is given."""
    own = [] if config.model.checkpoint_name_or_path is None else [OWN_MODEL]
    checkpoints = [*own, *(config.checkpoints or {})]
    adapters: list[str | None] = [*config.lora.names] or [None]
    decodings = [*config.variants]
    columns = []
    for checkpoint, adapter, decoding in product(checkpoints, adapters, decodings):
        parts = [checkpoint] * (len(checkpoints) > 1) + ([] if adapter is None else [adapter])
        parts += [decoding] * (len(decodings) > 1)
        columns.append(Column("+".join(parts) or checkpoint, checkpoint, decoding, adapter))
    return columns


def baseline_of(config: EvaluateConfig, columns: list[Column]) -> Column:
    """The column that the others are compared with. Raises ConfigError where there is none of its name."""
    names = {column.name: column for column in columns}
    if config.baseline is None:
        return columns[0]
    if config.baseline not in names:
        near = did_you_mean(config.baseline, names)
        raise ConfigError(
            f"baseline={shown(config.baseline)}: no such column; there are {', '.join(names)}{near}"
        )
    return names[config.baseline]


def adapters_of(config: EvaluateConfig, column: Column) -> LoraConfig:
    """The adapter of a column alone, as the default of its rows; nothing for the base."""
    name = column.adapter
    if name is None or config.lora.adapters[name] is None:
        return LoraConfig()
    return replace(config.lora, adapters={name: config.lora.adapters[name]}, default=name, max_loaded=None)


def model_of(config: EvaluateConfig, column: Column) -> ModelConfig:
    folder = (config.checkpoints or {}).get(column.checkpoint)
    return (
        config.model if folder is None else replace(config.model, type="auto", checkpoint_name_or_path=folder)
    )


def run_config(
    config: EvaluateConfig, column: Column, requests: Path, folder: Path, *, is_scored: bool
) -> BatchConfig:
    """The run of a column over a file of requests.

    is_scored: the tokens of the requests are scored; else they are continued.
    """
    decoding = config.answer_decoding(column.decoding)
    if is_scored:
        decoding = DecodingConfig(max_new_tokens=1, prompt_logprobs=0)
    model = model_of(config, column)
    made = BatchConfig(
        model=model,
        lora=adapters_of(config, column),
        decoding=decoding,
        parallel=config.parallel,
        launch=config.launch,
        runtime=config.runtime,
        data=requests_data(requests, config.data, is_scored=is_scored),
        output=BatchOutputConfig(
            dir=str(folder), format="jsonl", token_ids=not is_scored and needs_tokens(config)
        ),
        progress="none",
    )
    if decoding.seed == config.drawn.get(SEED):
        made.drawn = config.drawn
    save_as_written(made, config.resolved_settings)
    return made


def requests_data(path: Path, data: DataConfig, *, is_scored: bool) -> DataConfig:
    """Describes a file of requests for reading; `data`: what goes with the chats of the task."""
    return DataConfig(
        path=str(path),
        format="jsonl",
        key_column="key",
        decoding_column=DECODING if is_scored else None,
        tools=data.tools,
        chat_template_kwargs=data.chat_template_kwargs,
        date=data.date,
        max_errors=data.max_errors,
        max_line_bytes="1GiB",
    )


def needs_tokens(config: EvaluateConfig) -> bool:
    """True if a metric is one of the generated tokens."""
    return not {*REFERENCE_FREE}.isdisjoint(config.metric_names)


def _file_name(name: str) -> str:
    """A folder's name for an adapter: itself where it can be one, else with a digest that tells it apart."""
    safe = re.sub(r"[^\w.-]", "_", name, flags=re.ASCII)
    return safe if safe == name else f"{safe}-{blake2b(name.encode(), digest_size=4).hexdigest()}"
