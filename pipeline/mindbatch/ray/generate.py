"""Generate: a model as a callable class for the batches of a Ray Data pipeline."""

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
    """Continues the prompt of every row of a batch: for `map_batches` of Ray Data.

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

    Each actor loads the model once, in a process of its own. A batch may come as NumPy, pandas or PyArrow;
    the result is a PyArrow table with a row for each of its rows, in their order: the columns of the Parquet
    result files of `mindbatch batch`, and `error`, which says why a row has no result. A row has the same
    result there and here, in whatever batch it comes, for its key fixes its random numbers.

    Args:
        path: as of `LLM`, on each node.
        data: how a row becomes a prompt: the keys of the section `data` but those that choose rows.
            key_column must be given. `date`, where it is not, is one for all actors of a job.
        decoding: the decoding parameters; a column of `data` may say more for single rows.
        output: `columns` to stand beside the results, `token_ids`, `prompt`.
        options: the keywords of `LLM`; batch_size is of sequences in a step.
            num_threads is the number of CPUs that Ray gives the actor unless it is said.

    Raises:
        TypeError: an option that there is not.
        ConfigError: every error in the others, before the model is loaded.
        CheckpointError: the folder is damaged or does not hold a supported model.
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
        self._written = OutputOptions(
            prompt=config.output.prompt,
            token_ids=config.output.token_ids,
            adapter=bool(config.lora.names),
        )
        self._data = config.data
        self._maker = RowMaker(config.data, self._params, is_openai=False, lora=config.lora)
        self._date = config.data.date or _job_date()
        self._llm = _loaded(config)
        if asked := always_chats(config.data):
            self._llm.refuse_chats(asked)

    def __call__(self, batch: Any) -> pa.Table:
        """The results of a batch.

        Raises:
            ConfigError: the batch has not the columns that were asked for, or is in none of Ray's formats.
        """
        from mindbatch.ray.batches import carried, columns_of, records, result_table  # pyarrow takes long

        columns = columns_of(batch)
        extra_columns = carried(columns, self._columns)
        rows = [
            self._maker.make(record.line, record) for record in records(columns, self._data.decoding_column)
        ]
        if missing := self._maker.missing_columns():
            raise ConfigError(missing)
        return result_table(self._outcomes(rows), self._written, extra_columns)

    def close(self) -> None:
        """Lets go of the model and ends the processes of templates; an actor's end does it, too."""
        self._maker.close()
        self._llm.close()

    def _outcomes(self, rows: Sequence[DataRow | RowFailure]) -> list[FinishedRow | RowFailure]:
        finished: dict[int, FinishedRow | RowFailure] = {}
        waiting: dict[int, DataRow] = {}
        for place, row in enumerate(rows):
            if isinstance(row, DataRow):
                waiting[place] = row
            else:
                finished[place] = row
        while waiting:
            # An output names its row by its key: of several rows with one key only one runs at a time.
            places: dict[str, int] = {}
            for place, row in waiting.items():
                places.setdefault(row.key, place)
            chosen = {key: waiting.pop(place) for key, place in places.items()}
            for output in self._outputs(chosen.values()):
                finished[places[output.key]] = _outcome(chosen[output.key], output)
        return [finished[place] for place in sorted(finished)]

    def _outputs(self, rows: Iterable[DataRow]) -> Iterator[RequestOutput]:
        asked = ((row.prompt(self._date), row.params(self._params)) for row in rows)
        with closing(self._llm.steps(asked)) as steps:
            for step in steps:
                yield from step.finished


def _loaded(config: BatchConfig) -> LLM:
    """The model, in a process of its own: Ray's have imported another protobuf than MindSpore can use, and
    their signals are Ray's."""
    from mindbatch.replicas.load import load_replicas

    prepare_environment(config.runtime.verbose, config.runtime.num_threads)
    return LLM.over(load_replicas(config))


def _job_date() -> str:
    """The day on which the first actor of this job asked for it, however late others are made; today outside
    of a job."""
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


_OF_THE_DATASET = (
    "path",
    "format",
    "limit",
    "skip",
    "shuffle_seed",
    "filter_keys",
    "max_errors",
    "max_line_bytes",
)
_OF_FILES = ("dir", "format", "on_mismatch")
_NO_KEY = (
    "data.key_column: must be given: the column that names a row, different in every row; Ray deals rows out "
    "in no fixed order, and the key fixes a row's random numbers"
)


def settings_of(
    path: Any,
    data: Mapping[str, Any] | None,
    decoding: Mapping[str, Any] | None,
    output: Mapping[str, Any] | None,
    options: Mapping[str, Any],
) -> BatchConfig:
    """The configuration of a run over the rows that Ray brings; path, options: as of `LLM`.

    Raises:
        TypeError: an option that there is not.
        ConfigError: every error in the rest, a line each.
    """
    config = BatchConfig()
    errors = [
        *_section_errors("data", DataConfig, data, dict.fromkeys(_OF_THE_DATASET, "the dataset says that")),
        *_section_errors("decoding", DecodingConfig, decoding, {}),
        *_section_errors("output", BatchOutputConfig, output, dict.fromkeys(_OF_FILES, "no file is written")),
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
    """Errors of what was given for a section, by the types of its keys; refused: keys that have no effect."""
    if section is None:
        return
    if not isinstance(section, Mapping):
        yield f"{name}={shown(section)}: must be a mapping of keys, as the section {name} of a configuration"
        return
    keys = {name: key for name, key in schema_keys(schema).keys.items() if name not in refused}
    for key, value in section.items():
        place = f"{name}.{key}"
        if key in refused:
            yield f"{place}: has no effect with Ray Data: {refused[key]}; remove it"
        elif key not in keys:
            yield f"{place}: unknown key{did_you_mean(str(key), keys)}"
        elif error := keys[key].error(value):
            yield f"{place}={shown(value)}: {error}"


def _row_errors(config: BatchConfig) -> Iterable[str]:
    from mindbatch.ray.batches import ERROR

    if config.data.key_column is None:
        yield _NO_KEY
    if str(config.decoding.seed) == RANDOM:
        yield "decoding.seed=random: each actor would draw its own; give a number"
    if ERROR in config.output.columns:
        yield f"output.columns: {ERROR}: results have a field of that name already"
