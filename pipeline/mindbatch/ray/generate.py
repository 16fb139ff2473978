"""Provides a model as a callable class for `Dataset.map_batches` of Ray Data."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mindbatch.config.environment import prepare_environment
from mindbatch.config.error_log import shown
from mindbatch.config.llm_options import options_of
from mindbatch.config.model_schema import DecodingConfig
from mindbatch.config.schema import schema_keys
from mindbatch.dataset.data_config import DataConfig, always_chats, resolve_prompt_files
from mindbatch.dataset.rows import DataRow, RowFailure, RowMaker
from mindbatch.decoding import DecodingParams
from mindbatch.decoding.token_kinds import RANDOM
from mindbatch.engine.request import RequestOutput
from mindbatch.io.amounts import is_day, today
from mindbatch.io.error_lines import did_you_mean
from mindbatch.io.errors import ConfigError
from mindbatch.llm import LLM
from mindbatch.run.batch_config import BatchConfig, BatchOutputConfig
from mindbatch.run.generation import outcome_of
from mindbatch.run.result_rows import FinishedRow, OutputOptions

if TYPE_CHECKING:
    import pyarrow as pa

_NAMESPACE = b"mindbatch"


class Generate:
    """Generates outputs for the rows of a batch in `Dataset.map_batches` of Ray Data.

        dataset.map_batches(
            Generate,
            fn_constructor_kwargs={
                "path": "path/to/model",
                "data": {"key_column": "id", "prompt_column": "question"},
                "decoding": {"max_new_tokens": 64, "do_sample": True, "seed": 7},
            },
            batch_size=256,
            num_cpus=2,
            compute=ray.data.ActorPoolStrategy(size=4),
        )

    Each actor loads the model once, in a process of its own. Batches may be in NumPy's, pandas' or PyArrow's
    format. The result is a PyArrow table with a row for each row, in the same order: the columns of the
    Parquet result files of `mindbatch batch`, and `error` for rows without a result. The result of a row is
    the same as that of `mindbatch batch`, in any batch, because its key determines its random numbers.

    Args:
        path: see `LLM`; it must exist on each node.
        data: the keys of the section `data`, except those that choose rows; key_column is required. The
            default of `date` is the same for all actors of a job.
        decoding: the decoding parameters, which a column of `data` may override for single rows.
        output: the keys `columns` (columns of the batch to keep), `token_ids` and `prompt`.
        options: the keywords of `LLM`; batch_size is the number of sequences in a step. The default of
            num_threads is the number of CPUs that Ray assigns to the actor.

    Raises:
        TypeError: an option does not exist.
        ConfigError: all errors in the other arguments, before the model is loaded.
        CheckpointError: the folder is damaged or does not have a supported model.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        data: Mapping[str, Any] | None = None,
        decoding: Mapping[str, Any] | None = None,
        output: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        config = settings_of(path, data, decoding, output, options)
        self._params = DecodingParams(**vars(config.decoding))
        self._columns: Sequence[str] = config.output.columns
        self._output_options = OutputOptions(
            prompt=config.output.prompt,
            token_ids=config.output.token_ids,
            adapter=bool(config.lora.names),
        )
        self._data = config.data
        self._maker = RowMaker(config.data, self._params, is_openai=False, lora=config.lora)
        self._date = config.data.date or _job_date()
        self._llm = _loaded(config)
        if setting := always_chats(config.data):
            self._llm.refuse_chats(setting)

    def __call__(self, batch: Any) -> pa.Table:
        """Generates the results of a batch.

        Raises:
            ConfigError: the batch lacks requested columns, or is not in one of Ray's formats.
        """
        from mindbatch.ray.batches import (  # importing pyarrow is slow
            columns_of,
            extra_columns,
            records,
            result_table,
        )

        columns = columns_of(batch)
        kept_columns = extra_columns(columns, self._columns)
        rows = [
            self._maker.make(record.line, record) for record in records(columns, self._data.decoding_column)
        ]
        if missing := self._maker.missing_columns():
            raise ConfigError(missing)
        return result_table(self._outcomes(rows), self._output_options, kept_columns)

    def close(self) -> None:
        """Frees the model and ends the processes of templates, as does the end of the actor."""
        self._maker.close()
        self._llm.close()

    def _outcomes(self, rows: Sequence[DataRow | RowFailure]) -> list[FinishedRow | RowFailure]:
        finished: dict[int, FinishedRow | RowFailure] = {}
        waiting: dict[int, DataRow] = {}
        for index, row in enumerate(rows):
            if isinstance(row, DataRow):
                waiting[index] = row
            else:
                finished[index] = row
        while waiting:
            # Outputs are identified by keys, so rows with equal keys run one after another.
            indices: dict[str, int] = {}
            for index, row in waiting.items():
                indices.setdefault(row.key, index)
            chosen = {key: waiting.pop(index) for key, index in indices.items()}
            for output in self._outputs(chosen.values()):
                finished[indices[output.key]] = _outcome(chosen[output.key], output)
        return [finished[index] for index in sorted(finished)]

    def _outputs(self, rows: Iterable[DataRow]) -> Iterator[RequestOutput]:
        requests = ((row.prompt(self._date), row.params(self._params)) for row in rows)
        with closing(self._llm.steps(requests)) as steps:
            for step in steps:
                yield from step.finished


def _loaded(config: BatchConfig) -> LLM:
    """Loads the model in a process of its own, because Ray's process has imported a protobuf that MindSpore
    cannot use, and handles signals itself."""
    from mindbatch.replicas.load import load_replicas

    prepare_environment(config.runtime.verbose, config.runtime.num_threads)
    return LLM.over(load_replicas(config))


def _job_date() -> str:
    """Returns the day on which the first actor of this job called it, or today outside of a job."""
    ray: Any = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return today()
    from ray.experimental import internal_kv

    name = f"date of job {ray.get_runtime_context().get_job_id()}".encode()
    internal_kv._internal_kv_put(name, today().encode(), overwrite=False, namespace=_NAMESPACE)
    stored_day = internal_kv._internal_kv_get(name, namespace=_NAMESPACE)
    date = today() if stored_day is None else str(stored_day, "ascii", "replace")
    return date if is_day(date) else today()


def _outcome(row: DataRow, output: RequestOutput) -> FinishedRow | RowFailure:
    kind, body = outcome_of(output, row.prompt().source)
    if kind == "result":
        return FinishedRow(row, body)
    return RowFailure(row.key, row.source, row.line, body["stage"], body["reason"])


_DATASET_KEYS = (
    "path",
    "format",
    "limit",
    "skip",
    "shuffle_seed",
    "filter_keys",
    "max_errors",
    "max_line_bytes",
)
_FILE_KEYS = ("dir", "format", "on_mismatch")
_NO_KEY = (
    "data.key_column: must be given: a column with unique keys; Ray distributes rows in no fixed "
    "order, and the key determines a row's random numbers"
)


def settings_of(
    path: Any,
    data: Mapping[str, Any] | None,
    decoding: Mapping[str, Any] | None,
    output: Mapping[str, Any] | None,
    options: Mapping[str, Any],
) -> BatchConfig:
    """Makes the configuration of a run over Ray's rows. path, options: see `LLM`.

    Raises:
        TypeError: an option does not exist.
        ConfigError: all other errors, one line each.
    """
    config = BatchConfig()
    errors = [
        *_section_errors("data", DataConfig, data, dict.fromkeys(_DATASET_KEYS, "the dataset sets it")),
        *_section_errors("decoding", DecodingConfig, decoding, {}),
        *_section_errors(
            "output", BatchOutputConfig, output, dict.fromkeys(_FILE_KEYS, "no file is written")
        ),
    ]
    try:
        loaded = options_of(path, options)
        config.model, config.runtime = loaded.model, loaded.runtime
        config.parallel, config.lora = loaded.parallel, loaded.lora
    except ConfigError as error:
        errors += error.lines
    if not errors:
        config.data = DataConfig(**data or {})
        config.decoding = DecodingConfig(**decoding or {})
        config.output = BatchOutputConfig(**output or {})
        resolve_prompt_files(config.data, errors)
        errors += [*config.all_errors(schema_keys(BatchConfig)), *_row_errors(config)]
    if errors:
        raise ConfigError(errors)
    return config


def _section_errors(name: str, schema: type, section: object, refused: Mapping[str, str]) -> Iterator[str]:
    """Yields errors of a section's keys and values. refused: reasons why keys have no effect."""
    if section is None:
        return
    if not isinstance(section, Mapping):
        yield f"{name}={shown(section)}: must be a mapping of keys, as the section {name} of a configuration"
        return
    keys = {name: key for name, key in schema_keys(schema).keys.items() if name not in refused}
    for key, value in section.items():
        full_name = f"{name}.{key}"
        if key in refused:
            yield f"{full_name}: has no effect with Ray Data: {refused[key]}; remove it"
        elif key not in keys:
            yield f"{full_name}: unknown key{did_you_mean(str(key), keys)}"
        elif error := keys[key].error(value):
            yield f"{full_name}={shown(value)}: {error}"


def _row_errors(config: BatchConfig) -> Iterable[str]:
    from mindbatch.ray.batches import ERROR

    if config.data.key_column is None:
        yield _NO_KEY
    if str(config.decoding.seed) == RANDOM:
        yield "decoding.seed=random: each actor would draw its own; use a number"
    if ERROR in config.output.columns:
        yield f"output.columns: {ERROR}: results already have a field of that name"
