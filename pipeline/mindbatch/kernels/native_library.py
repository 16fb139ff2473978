"""Finding and loading the compiled CPU kernels, without MindSpore."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mindbatch.io.errors import ConfigError
from mindbatch.io.installation import kernels_are_missing, rebuild_hint

if TYPE_CHECKING:  # commands that only ask for it load no NumPy
    import numpy as np
    import numpy.typing as npt

    Array = npt.NDArray[Any]
    FloatArray = npt.NDArray[np.float32]

VARIANTS = (
    "amx",
    "avx512_bf16",
    "avx512_vnni",
    "avx512",
    "avx2",
    "neon_i8mm_bf16",
    "neon_dotprod",
    "neon",
    "portable",
)
INTERFACE = 20  # mb_interface() in csrc/mindspore_ops.cpp

_PRODUCTS = {
    "neon": ("float32", "int32"),
    "neon_dotprod": ("float32", "int8"),
    "neon_i8mm_bf16": ("bfloat16", "int8"),
    "avx512_vnni": ("float32", "int8"),
    "avx512_bf16": ("bfloat16", "int8"),
    "amx": ("bfloat16 tiles", "int8 tiles"),
}
"""By instruction set: what it multiplies bfloat16 and int8 in; the others widen both."""
_OTHER_BITS = {"amx": "tiles", "portable": "vectors without multiply-add"}
"""Which bits instruction sets come to where they are not those of vectors."""


@dataclass(frozen=True)
class NativeLibrary:
    """The compiled kernels: where they are and the handle that controls their threads and variant."""

    path: Path
    handle: ctypes.CDLL

    @property
    def variant(self) -> str:
        """The instruction set in use, of VARIANTS."""
        name: bytes = self.handle.mb_variant()
        return name.decode()

    @property
    def num_threads(self) -> int:
        return int(self.handle.mb_num_threads())

    def set_num_threads(self, count: int) -> None:
        """Takes effect before the first kernel runs; threads that have started stay."""
        self.handle.mb_set_num_threads(count)

    def address_of(self, function: str, others: Mapping[str, Any] | None = None) -> int:
        """Address of a function of the library, for calls from within it; of `others` one of that name."""
        pointer = (others or {}).get(function) or getattr(self.handle, function)
        address = ctypes.cast(pointer, ctypes.c_void_p).value
        assert address is not None
        return address

    @property
    def run_program(self) -> Callable[[Any], int]:
        """Runs the calls of a program (csrc/program.cpp) without Python's lock; 0, or which call failed."""
        run: Callable[[Any], int] = self.handle.mb_run_program
        return run

    def process_group_bytes(self, size: int) -> int:
        """Returns the bytes of memory that so many ranks share."""
        return int(self.handle.mb_process_group_bytes(size))

    def join_process_group(self, file: int, rank: int, size: int) -> int:
        """Maps an open file of `process_group_bytes`; returns the number of the group in this process."""
        number = int(self.handle.mb_join_process_group(file, rank, size))
        assert number >= 0, "too many process groups, or no memory for one more"
        return number

    def pack(self, kind: int, stored: int, rows: Array, packed: Array, first_output: int) -> int:
        """Writes rows [n, inputs] to a packed matrix (csrc/packing.cpp); counts the finite numbers lost.

        packed: [panels, segments, ...].
        """
        sizes = (*rows.shape, *(stride // rows.itemsize for stride in rows.strides))
        into = packed.ctypes.data, first_output, packed.shape[1]
        return int(self.handle.mb_pack(kind, stored, rows.ctypes.data, *sizes, *into))

    def likeliest(
        self, scores: FloatArray, summary: FloatArray | None, likeliest: Array, normalisers: Array
    ) -> None:
        """Writes what `decoding.softmax.likeliest_and_normalisers` gives of contiguous scores [n, V].

        summary: [n, 2, panels], what is known of the scores (csrc/summary.h), if it is.
        likeliest, normalisers: [n], int64 and float64.
        """
        score_addresses, result_addresses = _addresses(scores, summary), _addresses(likeliest, normalisers)
        self.handle.mb_likeliest(*score_addresses, *scores.shape, *result_addresses)

    def choose(
        self,
        logits: FloatArray,
        summary: FloatArray | None,
        changed: Array,
        rules: Array,
        uniforms: Array,
        first_uniforms: Array,
        likeliest: Array,
        normalisers: Array,
        tokens: Array,
    ) -> None:
        """Writes as `likeliest`, and tokens drawn from each row at its uniform numbers: see csrc/draws.h.

        changed: [n], addresses of [V] float32 numbers to draw from, 0 for the row's logits. rules: [n], each
        a DrawRule of csrc/variant_table.h. uniforms: [m], float64; those of row i are first_uniforms[i] to
        first_uniforms[i + 1]. tokens: [m], int64; -1 where a score is NaN or infinity, or all are minus
        infinity.
        """
        inputs = _addresses(logits, summary, changed, rules, uniforms, first_uniforms)
        self.handle.mb_choose(*inputs, *logits.shape, *_addresses(likeliest, normalisers, tokens))

    def philox(self, counters: Array, keys: Array, words: Array) -> None:
        """Writes `decoding.draws.philox4x32` of counters [4, S] and keys [2, S] to words [4, S]; uint64."""
        inputs = _addresses(counters, keys)
        self.handle.mb_philox(*inputs, counters.shape[1], words.ctypes.data)

    @property
    def variants(self) -> list[str]:
        """Lists the VARIANTS that this machine and this build have."""
        now = self.variant
        present = [name for name in VARIANTS if self.handle.mb_set_variant(name.encode())]
        self.handle.mb_set_variant(now.encode())
        return present

    def set_variant(self, name: str) -> None:
        """Uses another instruction set than the best one, in the whole process.

        Raises:
            ConfigError: this machine or this build does not have it.
        """
        if not self.handle.mb_set_variant(name.encode()):
            raise ConfigError(
                f"runtime.instruction_set={name}: not of this machine, or of this build of the kernels; "
                f"allowed here: auto, {', '.join(self.variants)}"
            )


def _addresses(*arrays: Array | None) -> list[int | None]:
    return [None if array is None else array.ctypes.data for array in arrays]


@lru_cache(maxsize=1)
def find_library() -> NativeLibrary | None:
    """The library that setup.py built beside this file, or None where no compiler was there.

    Raises:
        ConfigError: it was built from other sources, so that its functions take something else, or cannot be
            loaded.
    """
    path = Path(__file__).with_name("_cpu.so")
    return NativeLibrary(path, _open(path)) if path.exists() else None


def _open(path: Path) -> ctypes.CDLL:
    try:
        handle = ctypes.CDLL(str(path))
    except OSError as error:  # built for another machine, or a library of the system is not there
        raise ConfigError(
            f"the C++ kernels cannot be loaded ({error}); {rebuild_hint()}; runtime.kernels=reference does "
            "without"
        ) from error
    if not _is_current(handle):
        raise ConfigError(
            f"{path}: the C++ kernels were built from other sources than those beside them; "
            f"{rebuild_hint()} again; runtime.kernels=reference does without"
        )
    handle.mb_run_program.restype = ctypes.c_int64
    handle.mb_process_group_bytes.restype = ctypes.c_int64
    handle.mb_variant.restype = ctypes.c_char_p
    handle.mb_set_variant.argtypes = [ctypes.c_char_p]
    handle.mb_set_num_threads.argtypes = [ctypes.c_int]
    number, pointer = ctypes.c_int64, ctypes.c_void_p
    handle.mb_pack.argtypes = [ctypes.c_int, ctypes.c_int, pointer, *[number] * 4, pointer, number, number]
    handle.mb_pack.restype = number
    handle.mb_likeliest.argtypes = [*[pointer] * 2, number, number, *[pointer] * 2]
    handle.mb_likeliest.restype = None
    handle.mb_choose.argtypes = [*[pointer] * 6, number, number, *[pointer] * 3]
    handle.mb_choose.restype = None
    handle.mb_philox.argtypes = [pointer, pointer, number, pointer]
    handle.mb_philox.restype = None
    return handle


def _is_current(handle: ctypes.CDLL) -> bool:
    """True if a library has the entry points that this module calls, and the settings of csrc/settings.h."""
    if not hasattr(handle, "mb_interface") or handle.mb_interface() != INTERFACE:
        return False
    handle.mb_settings_digest.restype = ctypes.c_uint32
    digest = f" kSettingsDigest = {handle.mb_settings_digest()}u;"
    return digest in Path(__file__).with_name("csrc").joinpath("settings.h").read_text(encoding="utf-8")


def library_text(*, computes: bool = True) -> str:
    """One line for people: which kernels there are and how they run.

    computes: True where NumPy computes without them; False where what needs them is refused.
    """
    try:
        library = find_library()
    except ConfigError as error:
        return str(error)
    if library is None:
        return kernels_are_missing(computes=computes)
    return f"native ({library.variant}, {library.num_threads} threads)"


def faster() -> str | None:
    """Names rounded weights worth trying with these kernels, and why; None without kernels."""
    try:
        library = find_library()
    except ConfigError:
        library = None
    if library is None:
        return None
    products = _PRODUCTS.get(library.variant, ("float32", "int16"))
    prompts = "; small batches gain, prompts do not" if products[0] == "float32" else ""
    return (
        f"model.quantization=int8 (a quarter of float32's bytes, products in {products[1]}), "
        f"model.dtype=bfloat16 (half of them, products in {products[0]}{prompts})"
    )


def arithmetic_of(kernels: str, weights: str) -> str:
    """Names the bits that kernels come to: one name for all that come to the same.

    kernels: names as `choice.kernels_in_use` gives them, those of several ranks with commas. weights: the
    type in which they are kept; tiles multiply no float32.
    """

    def bits_of(name: str) -> str:
        if name not in VARIANTS:
            return name
        return "vectors" if name == "amx" and weights == "float32" else _OTHER_BITS.get(name, "vectors")

    return ", ".join(sorted({bits_of(name) for name in kernels.split(", ")}))
