"""Settings of `Generate`: the sections of a run over a dataset, checked as `mindbatch batch` does."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from mindbatch.config.faults import shown
from mindbatch.config.model_schema import DecodingConfig
from mindbatch.config.schema import schema_keys
from mindbatch.dataset.data_config import DataConfig, settle_beside_rows
from mindbatch.decoding.value_kinds import RANDOM
from mindbatch.io.errors import ConfigError
from mindbatch.io.fault_lines import did_you_mean
from mindbatch.llm_input import options_of
from mindbatch.run.batch_config import BatchConfig, BatchOutputConfig

ERROR = "error"
"""The column that says why a row has no result."""

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
_OF_FILES = ("dir", "format", "on_mismatch", "tensorboard")
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
        ConfigError: every fault in the rest, a line each.
    """
    config = BatchConfig()
    faults = [
        *_section_faults("data", DataConfig, data, dict.fromkeys(_OF_THE_DATASET, "the dataset says that")),
        *_section_faults("decoding", DecodingConfig, decoding, {}),
        *_section_faults("output", BatchOutputConfig, output, dict.fromkeys(_OF_FILES, "no file is written")),
    ]
    try:
        loaded = options_of(path, options)
        config.model, config.runtime = loaded.model, loaded.runtime
        config.parallel, config.lora = loaded.parallel, loaded.lora
    except ConfigError as error:
        faults += error.faults
    if not faults:
        config.data = DataConfig(**data or {})
        config.decoding = DecodingConfig(**decoding or {})
        config.output = BatchOutputConfig(**output or {})
        settle_beside_rows(config.data, faults)
        faults += [*config.own_faults(schema_keys(BatchConfig)), *_row_faults(config)]
    if faults:
        raise ConfigError(faults)
    return config


def _section_faults(name: str, schema: type, section: object, refused: Mapping[str, str]) -> Iterator[str]:
    """Faults of what was given for a section, by the types of its keys; refused: keys that have no effect."""
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
        elif fault := keys[key].fault(value):
            yield f"{place}={shown(value)}: {fault}"


def _row_faults(config: BatchConfig) -> Iterable[str]:
    if config.data.key_column is None:
        yield _NO_KEY
    if str(config.decoding.seed) == RANDOM:
        yield "decoding.seed=random: each actor would draw its own; give a number"
    if ERROR in config.output.columns:
        yield f"output.columns: {ERROR}: results have a field of that name already"
