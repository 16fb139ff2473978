"""Columns of an evaluation, one for each model, adapter and decoding, and the baseline of each."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import product

from mindbatch.config.error_log import shown
from mindbatch.config.model_schema import ModelConfig
from mindbatch.io.error_lines import as_written, did_you_mean
from mindbatch.io.errors import ConfigError
from mindbatch.tasks.evaluate.schema import OWN_MODEL, EvaluateConfig


@dataclass(frozen=True)
class Column:
    """One of the systems that are compared: a model with an adapter and a decoding.

    name: its name in the results, made of the parts in which columns differ. checkpoint: the model's name.
    adapter: its name in `lora.adapters`; None without adapters. decoding: the option of the group.
    """

    name: str
    checkpoint: str
    decoding: str
    adapter: str | None = None

    @property
    def folder(self) -> str:
        """Name of the column's folder; it does not depend on the other columns."""
        return f"{self.scored_as}+{self.decoding}"

    @property
    def scored_as(self) -> str:
        """Name of the folder of scored texts; columns that differ in decoding share it."""
        return self.checkpoint if self.adapter is None else f"{self.checkpoint}+{_file_name(self.adapter)}"


def columns_of(config: EvaluateConfig) -> list[Column]:
    """Combines every checkpoint, first of all `model` if it is set, with every adapter and every decoding."""
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


def baselines_of(config: EvaluateConfig, columns: Sequence[Column]) -> dict[str, str]:
    """Finds the baseline of each column, by name; a column that is its own baseline has none.

    Raises:
        ConfigError: there is no column of the name in `baseline`.
    """
    names = [column.name for column in columns]
    if config.baseline is None:
        return {column.name: _baseline_of(column, columns).name for column in columns}
    if config.baseline not in names:
        baseline, near = shown(config.baseline, notation=as_written), did_you_mean(config.baseline, names)
        raise ConfigError(f"baseline={baseline}: no such column; there are {', '.join(names)}{near}")
    return dict.fromkeys(names, config.baseline)


def _baseline_of(column: Column, columns: Sequence[Column]) -> Column:
    """Chooses the first column of the same decoding; for that one the first column of all."""
    alike = next(other for other in columns if other.decoding == column.decoding)
    return columns[0] if alike is column else alike


def model_of(config: EvaluateConfig, column: Column) -> ModelConfig:
    folder = (config.checkpoints or {}).get(column.checkpoint)
    if folder is None:
        return config.model
    return replace(config.model, type="auto", checkpoint_name_or_path=folder)


def _file_name(name: str) -> str:
    """Makes a folder's name of an adapter's; a digest keeps one with replaced characters unique."""
    safe = re.sub(r"[^\w.-]", "_", name, flags=re.ASCII)
    return safe if safe == name else f"{safe}-{blake2b(name.encode(), digest_size=4).hexdigest()}"
