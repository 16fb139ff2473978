"""Checks whether and how a model folder will run, for `mindbatch inspect`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mindbatch.checkpoint.folders.folder_files import CONFIG_NAME, read_config
from mindbatch.config.model_schema import ModelConfig, RuntimeConfig
from mindbatch.io.amounts import size
from mindbatch.io.errors import CheckpointError, ConfigError
from mindbatch.kernels.memory import BFLOAT16, FLOAT32, INT8
from mindbatch.models.architecture import Architecture
from mindbatch.models.described_config import check_division
from mindbatch.models.registry import nearest_supported

NUMBERS_OF_RANKS = (2, 4, 8, 16, 32, 64)
MOST_DIFFERENCES = 3


@dataclass(frozen=True)
class HowItRuns:
    """Properties of a model folder run by `generate` or `batch` with the defaults of their options.

    positions: most tokens of prompt and output. cached_numbers: of one token's keys and values.
    model_parallel: the numbers of ranks that the model can be sharded over. not_on_ascend: why not, if so.
    """

    model_type: str
    parameters: int
    positions: int
    cached_numbers: int
    model_parallel: tuple[int, ...]
    not_on_ascend: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """For programs."""
        return asdict(self)

    def lines(self) -> Iterator[str]:
        """For people."""
        weights = ", ".join(
            f"{size(self.parameters * kind.itemsize)} in {kind.name}" for kind in (FLOAT32, BFLOAT16, INT8)
        )
        ranks = ", ".join(map(str, (1, *self.model_parallel)))
        yield f"runs as {self.model_type}: {self.parameters:,} parameters, up to {self.positions:,} tokens"
        yield f"  on a CPU: {weights}; a token of the cache {size(self.cached_numbers * FLOAT32.itemsize)}"
        if self.not_on_ascend:
            yield f"  not on Ascend: {'; '.join(self.not_on_ascend)}"
        else:
            held, token = self.parameters * BFLOAT16.itemsize, self.cached_numbers * BFLOAT16.itemsize
            yield f"  on Ascend: {size(held)} in {BFLOAT16.name}; a token of the cache {size(token)}"
        yield f"  parallel.model_parallel: {ranks}"


def how_it_runs(path: Path) -> HowItRuns:
    """Reads config.json and the heads of the weights.

    Raises:
        CheckpointError, ConfigError: it does not run; see `Provider.open_folder`.
    """
    from mindbatch.loading.providers import open_model  # NumPy, which pages of other files do not need

    spec = open_model(ModelConfig(checkpoint_name_or_path=str(path))).spec
    return HowItRuns(
        spec.model_type,
        spec.num_parameters,
        spec.max_positions,
        spec.cached_numbers,
        tuple(ranks for ranks in NUMBERS_OF_RANKS if _is_divisible(spec.architecture, ranks)),
        tuple(spec.ascend_faults(RuntimeConfig().block_size)),
    )


def _is_divisible(arch: Architecture, model_parallel: int) -> bool:
    try:
        check_division(arch, model_parallel)
    except ConfigError:
        return False
    return True


def nearest_lines(path: Path) -> Iterator[str]:
    """Yields the type nearest to a folder that does not run, and what differs; nothing where none is near."""
    try:
        config = read_config(path)
    except (CheckpointError, ConfigError):
        return
    near = nearest_supported(config, CONFIG_NAME)
    if near is None or near.model_type == config.get("model_type"):
        return
    yield f"nearest supported type: {near.model_type}; " + (
        "what differs:" if near.differences else "no key of config.json differs, tensors may"
    )
    yield from (f"  {each.partition(';')[0]}" for each in near.differences[:MOST_DIFFERENCES])
    if (more := len(near.differences) - MOST_DIFFERENCES) > 0:
        yield f"  and {more} more"
