"""Describes a model by its folder's config.json alone, its weights unopened."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from mindbatch.checkpoint.folders.folder_files import CONFIG_NAME, read_config
from mindbatch.checkpoint.placement.placements import check_sizes
from mindbatch.io.errors import CheckpointError, ConfigError
from mindbatch.models.architecture import Architecture
from mindbatch.models.config_reader import NONE_IGNORED, IgnoredKeys
from mindbatch.models.registry import describe, tensor_specs
from mindbatch.parallel.topology import DeviceMap


class DescribedConfig(NamedTuple):
    """source: the path of config.json, for messages."""

    content: Mapping[str, Any]
    source: str
    architecture: Architecture


def described_config(
    folder: Path, model_type: str = "auto", ignore: IgnoredKeys = NONE_IGNORED, *, to_be_run: bool = True
) -> DescribedConfig:
    """The architecture that config.json asks for. Arguments and errors: see `registry.describe`."""
    content, source = read_config(folder), str(folder / CONFIG_NAME)
    return DescribedConfig(
        content, source, describe(content, model_type, source, to_be_run=to_be_run, ignore=ignore)
    )


def architecture_if_sound(folder: Path, model_type: str, ignore: IgnoredKeys) -> Architecture | None:
    """None for a config.json that is damaged or of no model that is run: who opens the folder says so."""
    try:
        return described_config(folder, model_type, ignore).architecture
    except (CheckpointError, ConfigError):
        return None


def positions_of(folder: Path, model_type: str, ignore: IgnoredKeys) -> int | None:
    """The most tokens of prompt and output together; None as for `architecture_if_sound`."""
    arch = architecture_if_sound(folder, model_type, ignore)
    return None if arch is None else arch.max_positions


def check_division(
    arch: Architecture, model_parallel: int, pipeline_stage: int = 1, device_map: DeviceMap = None
) -> None:
    """Raises ConfigError with all that keeps the model from being divided by these numbers of `parallel`."""
    if arch.encoder is not None and pipeline_stage > 1:
        raise ConfigError(
            f"parallel.pipeline_stage={pipeline_stage}: a {arch.model_type} has an encoder besides; "
            "allowed: 1"
        )
    shared = [layer for layer in range(arch.num_layers) if arch.cache_layer(layer) != layer]
    if pipeline_stage > 1 and (shared or arch.per_layer is not None):
        raise ConfigError(
            f"parallel.pipeline_stage={pipeline_stage}: layers of this {arch.model_type} take in what others "
            "before them have made; allowed: 1"
        )
    check_sizes(tensor_specs(arch), model_parallel, pipeline_stage, device_map, keys="parallel.")


def division_faults(
    folder: Path,
    model_type: str,
    ignore: IgnoredKeys,
    model_parallel: int,
    pipeline_stage: int = 1,
    device_map: DeviceMap = None,
) -> Iterable[str]:
    """The faults of `check_division`, from the folder's config.json alone.

    None for a config.json that is damaged or of no model that is run: who opens the folder says so.
    """
    arch = architecture_if_sound(folder, model_type, ignore)
    if arch is None:
        return ()
    try:
        check_division(arch, model_parallel, pipeline_stage, device_map)
    except ConfigError as error:
        return error.faults
    return ()
