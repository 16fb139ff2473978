"""Judges whether a model can be divided as `parallel` asks, before its folder is opened and after."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from mindbatch.checkpoint.placement.placements import check_sizes
from mindbatch.io.errors import ConfigError
from mindbatch.models.architecture import Architecture
from mindbatch.models.config_reader import IgnoredKeys
from mindbatch.models.described_config import architecture_if_sound
from mindbatch.models.registry import tensor_specs
from mindbatch.parallel.topology import DeviceMap


def check_division(
    arch: Architecture, model_parallel: int, pipeline_stage: int = 1, device_map: DeviceMap = None
) -> None:
    """Raises ConfigError with all that keeps the model from being divided by these numbers of `parallel`."""
    if arch.encoder is not None and pipeline_stage > 1:
        raise ConfigError(
            f"parallel.pipeline_stage={pipeline_stage}: a {arch.model_type} has an encoder besides; "
            "allowed: 1"
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
