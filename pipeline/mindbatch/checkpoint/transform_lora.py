"""Plans the merge of LoRA matrices that lie beside the base weights, as MindFormers trains."""

import numpy as np

from mindbatch.checkpoint.error_lines import raise_if_any
from mindbatch.checkpoint.folders.folder_files import file_in, has_file
from mindbatch.checkpoint.folders.tensor_set import TensorSet, stored_segments
from mindbatch.checkpoint.formats.stored import StoredTensor
from mindbatch.checkpoint.lora.adapter import (
    LoraAdapter,
    checked_modules,
    first_rank,
    module_errors,
)
from mindbatch.checkpoint.lora.config import ADAPTER_CONFIG, LoraSettings, read_lora_config
from mindbatch.checkpoint.lora.modules import base_finder, stored_array
from mindbatch.checkpoint.lora.names import (
    FoundModules,
    find_modules,
    is_lora_name,
    is_of_training,
    unused_errors,
)
from mindbatch.checkpoint.lora.plan import BaseTensors, LoraPlan, plan_merge
from mindbatch.checkpoint.transform import Transform
from mindbatch.io.errors import ConfigError


def plan_beside(transform: Transform, scaling: float | None) -> LoraPlan:
    """Plans the merge of the matrices that a checkpoint holds.

    scaling: lora_alpha / r; None: as adapter_config.json beside the checkpoint says.

    Raises:
        ConfigError: the scaling is missing, or given twice with different values.
        CheckpointError: lists matrices that do not fit, lack their other half, or have no effect.
    """
    path = transform.source.path
    lora_names = [name for name in transform.placements if is_lora_name(name)]
    names = [name for name in lora_names if not is_of_training(name)]
    found_modules = find_modules(names)
    if not found_modules.modules and not found_modules.errors:
        raise_if_any(["holds no lora_a and lora_b matrices"], str(path))
    raise_if_any([*found_modules.errors, *unused_errors(found_modules.others)], str(path))
    if dropped := len(lora_names) - len(names):
        transform.notes.append(f"{dropped} tensors of the optimizer for the matrices are left out")
    dtypes = {name: transform.source.dtype(name) for name in transform.placements}
    settings = _settings(transform, found_modules, scaling)
    full = {name: StoredTensor(name, dtypes[name], transform.placements[name].shape, ()) for name in names}
    raise_if_any(module_errors(found_modules, settings, full), str(path))
    sets = transform.source.ranks
    arrays = {
        name: stored_array(name, full[name].shape, segments, _checked_digest)
        for name, segments in stored_segments(transform.files(names), sets).items()
    }
    modules = checked_modules(found_modules, settings, arrays, path)
    adapter = LoraAdapter(path, settings, modules)
    shapes = {
        name: placement.shape for name, placement in transform.placements.items() if not is_lora_name(name)
    }
    stored = {name: [dtype] for name, dtype in dtypes.items()}
    return plan_merge(adapter, BaseTensors(shapes), stored, base_finder(transform.files(shapes), sets))


def _checked_digest(tensors: TensorSet, name: str) -> str:
    return tensors.checked_digests([name])[name]


def _settings(transform: Transform, found_modules: FoundModules, scaling: float | None) -> LoraSettings:
    """Reads adapter_config.json beside the checkpoint, or uses the given scaling and the matrices' rank."""
    path = transform.source.path
    folder = path if path.is_dir() else path.parent
    rank = first_rank(
        found_modules, {name: placement.shape for name, placement in transform.placements.items()}
    )
    if not has_file(folder, ADAPTER_CONFIG):
        if scaling is None:
            raise ConfigError(
                f"{folder}: no {ADAPTER_CONFIG}, which says lora_alpha; give --lora_scaling: lora_alpha / "
                f"{rank}, for the matrices are of rank {rank}"
            )
        return LoraSettings(rank, 0.0, uniform_scaling=scaling)
    settings = read_lora_config(file_in(folder, ADAPTER_CONFIG))
    if scaling is not None and not np.isclose(scaling, settings.scaling, rtol=1e-6):
        raise ConfigError(
            f"--lora_scaling {scaling:g}: {folder / ADAPTER_CONFIG} says {settings.scaling:g}; remove one"
        )
    return settings
