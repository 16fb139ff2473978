"""Loads the weights of MindFormers' network with its own loader, from files that our reader has checked."""

from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from typing import Any

from mindspore import nn

from mindbatch.architecture.architecture import Architecture
from mindbatch.backends.mindformers.families import FAMILIES
from mindbatch.checkpoint.error_lines import raise_if_any, shown
from mindbatch.checkpoint.folders.model_folder import StoredWeights
from mindbatch.checkpoint.formats.floats import FloatArray
from mindbatch.io.interrupts import interruptible
from mindbatch.kernels.arrays import Array
from mindbatch.kernels.interface import Kernels
from mindbatch.model_spec.registry import unused_tensors

KEY_VALUE = ".key_value."


class StoredSlice:
    """One tensor of the folder with the interface of safetensors' get_slice, which MindFormers' loaders use.

    `was_read` is True once a loader has read some of it.
    """

    def __init__(self, folder: StoredWeights, name: str, kernels: Kernels) -> None:
        self._folder = folder
        self._name = name
        self._dtype = kernels.dtype
        self.was_read = False

    def get_shape(self) -> list[int]:
        return [*self._folder.info(self._name).shape]

    def __getitem__(self, key: Any) -> Array:
        """Reads a part of the values, verified by the tensor's digest, in the network's type."""
        self.was_read = True
        values: FloatArray = self._folder.floats(self._name)
        part: Array = values[key].astype(self._dtype, copy=False)
        return part


class HeadHalves:
    """The keys or values of a tensor [kv_heads x (key, value) x head_dim, hidden], read as a `StoredSlice`.

    half: 0 for keys, 1 for values.
    """

    def __init__(self, fused: StoredSlice, kv_heads: int, half: int) -> None:
        self._fused = fused
        self._heads = kv_heads
        self._half = half

    def get_shape(self) -> list[int]:
        rows, *others = self._fused.get_shape()
        return [rows // 2, *others]

    def __getitem__(self, key: Any) -> Array:
        fused = self._fused[:]
        halves = fused.reshape(self._heads, 2, -1, *fused.shape[1:])
        half: Array = halves[:, self._half].reshape(self.get_shape())[key]
        return half


def load_weights(
    network: nn.Cell,
    arch: Architecture,
    folder: StoredWeights,
    kernels: Kernels,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Loads the tensors of the model; `progress` is called with (tensors done, number of tensors).

    Raises:
        CheckpointError: a tensor is damaged or was not read by MindFormers, or a parameter of its network
            was not loaded.
    """
    unused = unused_tensors(arch)
    names = [name for name in folder.names if not any(fnmatchcase(name, pattern) for pattern in unused)]
    slices = {name: StoredSlice(folder, name, kernels) for name in names}
    translate = translation(network, arch)

    def tensors() -> Iterator[tuple[str, StoredSlice | HeadHalves]]:
        for done, (name, stored) in enumerate(slices.items()):
            yield from ((translate(part), read) for part, read in _parts(name, stored, arch))
            if progress is not None:
                progress(done + 1, len(slices))

    loaded = network.model.load_weights(tensors(), network.generate_mapping(), is_hf_weight=True)
    errors = [
        f"tensor {shown(name)} was not read by MindFormers' {arch.model_type}"
        for name, stored in slices.items()
        if not stored.was_read
    ]
    parameters = network.model.get_params_dict().keys() - loaded
    errors += [
        f"parameter {shown(name)} of MindFormers' {arch.model_type} was not loaded"
        for name in sorted(parameters)
    ]
    raise_if_any(errors, str(folder.path))
    with interruptible():  # computing products makes MindSpore handle SIGINT itself
        network.process_weights_after_loading(network.model)


def _parts(
    name: str, stored: StoredSlice, arch: Architecture
) -> Iterator[tuple[str, StoredSlice | HeadHalves]]:
    """Yields the tensors that MindFormers loads from one tensor, with the checkpoint's names."""
    if KEY_VALUE in name:
        for half, part in enumerate((".key.", ".value.")):
            yield name.replace(KEY_VALUE, part), HeadHalves(stored, arch.kv_heads, half)
    else:
        yield name, stored


def translation(network: nn.Cell, arch: Architecture) -> Callable[[str], str]:
    """Returns the translation of Hugging Face's names to the network's, by its own list of replacements.

    The list also renames layers for multi-token prediction by number (`model.layers.61.` of DeepSeek-V3),
    which may be ordinary layers of a deeper model. These replacements are dropped.
    """
    pairs = [
        pair
        for pair in (*FAMILIES[arch.model_type].names, *network.weight_mapping)
        if not pair[0].removeprefix("model.layers.").rstrip(".").split(".")[0].isdigit()
    ]

    def translated(name: str) -> str:
        for old, new in pairs:
            name = name.replace(old, new)
        return name

    return translated
