"""Loading a rank's file into the network by MindSpore, after our reader has checked it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from mindspore import Parameter, Tensor, load_checkpoint, load_param_into_net, nn
from mindspore.common.initializer import Zero

from mindbatch.backends.mindformers.legacy.network import is_cache
from mindbatch.checkpoint.faults import raise_if_any, shown
from mindbatch.checkpoint.folders.model_folder import ModelFolder
from mindbatch.errors import CheckpointError
from mindbatch.kernels.memory import FLOAT16, FloatType

_FORMATS = {".ckpt": "ckpt", ".safetensors": "safetensors"}


def load_rank(
    network: nn.Cell, folder: ModelFolder, float_type: FloatType, progress: Callable[[int, int], None]
) -> None:
    """Loads every tensor of this rank; `progress` is called with (files done, files in all).

    Raises:
        CheckpointError: damage, values beyond float16, a tensor that nothing took, or a parameter that none
            was loaded into, each by name.
    """
    raise_if_any([*_range_faults(folder, float_type)])
    folder.verify()
    missing, spare = {name for name, _ in network.parameters_and_names()}, set(folder.names)
    for done, path in enumerate(folder.weight_paths):
        tensors = load_checkpoint(str(path), format=_FORMATS[path.suffix])
        taken = _load(network, tensors, path)
        missing, spare = missing - taken, spare - taken
        progress(done + 1, len(folder.weight_paths))
    faults = [f"tensor {shown(name)} was not taken by MindFormers' network" for name in sorted(spare)]
    faults += [
        f"parameter {shown(name)} of MindFormers' network was not loaded"
        for name in sorted(missing)
        if not is_cache(name)
    ]
    raise_if_any(faults, str(folder.path))


def fill_with_zeros(network: nn.Cell) -> None:
    """As `load_rank`, of files of zeros: for graphs that are compiled and never compute."""
    zeros = {
        name: Parameter(Tensor(shape=each.shape, dtype=each.dtype, init=Zero()).init_data(), name=name)
        for name, each in network.parameters_and_names()
        if not is_cache(name)
    }
    load_param_into_net(network, zeros)


def _load(network: nn.Cell, tensors: dict[str, object], path: Path) -> set[str]:
    """Loads one file; the names of the tensors that were taken."""
    names = set(tensors)
    try:
        _, untaken = load_param_into_net(network, tensors)
    except (RuntimeError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path}: MindSpore does not load it: {str(error).splitlines()[0]}") from error
    return names - set(untaken)


def _range_faults(folder: ModelFolder, float_type: FloatType) -> Iterator[str]:
    """MindSpore makes infinities of what float16 does not hold."""
    wider = [name for name in folder.names if folder.info(name).dtype != FLOAT16.stored]
    if float_type == FLOAT16 and wider:
        yield (
            f"{folder.path}: {shown(wider[0])} is {folder.info(wider[0]).dtype}, whose values float16 may "
            "not hold; allowed with model.dtype=float16: files of `mindbatch reshard ... "
            "target.dtype=float16`, or model.dtype=bfloat16"
        )
