"""Times products of matrices kept as codes beside bfloat16 and int8, in one run, and prints one table.

    python tools/bench products
    python tools/bench products --instruction-set avx512_vnni

Matrices of 1,024 outputs and 4,096 inputs, so many that no cache holds them, random numbers. The kinds take
turns; in brackets: the ratio to int8. Codes are written as CODES/GROUP, with + where there are offsets.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator

import numpy as np

from bench.command_line import parser_of
from mindbatch.kernels.arrays import Array
from mindbatch.kernels.codes import Codes, CodeType
from mindbatch.kernels.memory import BFLOAT16, INT8
from mindbatch.kernels.native import NativeKernels
from mindbatch.kernels.native_library import NativeLibrary, find_library
from mindbatch.kernels.native_program import NativeProgram
from mindbatch.kernels.operations.dense import linear
from mindbatch.kernels.recording import Recording
from mindbatch.tasks.doctor import processor

OUTPUTS, INPUTS, MATRICES = 1024, 4096, 12
ROWS = (1, 8, 32, 256)
CODE_TYPES = (
    CodeType("int4", 128),
    CodeType("int4", 32),
    CodeType("int4", 32, has_offsets=True),
    CodeType("float4", 16),
    CodeType("int8", 32),
    CodeType("float8", 128),
)


def program(kernels: NativeKernels, weights: list[Array]) -> NativeProgram:
    """Returns the products of an input with all matrices."""
    recording = Recording()
    x = recording.input((INPUTS,), np.float32)
    recording.outputs = [linear(x, weight, None, outputs=OUTPUTS) for weight in weights]
    return kernels.program(kernels.lowered(recording))


def programs(library: NativeLibrary) -> Iterator[tuple[str, NativeProgram]]:
    """Yields the name of each kind and its products."""
    chance = np.random.default_rng(0)
    floats = chance.normal(0, 1 / 64, (OUTPUTS, INPUTS)).astype(np.float32)
    for rounded in (BFLOAT16, INT8):
        kernels, weights = NativeKernels(library, rounded), []
        for _ in range(MATRICES):
            weights.append(kernels.packed_zeros(OUTPUTS, INPUTS))
            kernels.pack(weights[-1], 0, floats)
        yield rounded.name, program(kernels, weights)
    kernels = NativeKernels(library, keeps_codes=True)
    for kind in CODE_TYPES:
        scales = np.full((OUTPUTS, INPUTS // (kind.group or INPUTS)), 0.01, np.float32)
        numbers = chance.integers(-4, 5, (OUTPUTS, INPUTS)).astype(np.int8)
        codes, weights = Codes(numbers, scales, scales if kind.has_offsets else None), []
        for _ in range(MATRICES):
            weights.append(kernels.coded_zeros(kind, OUTPUTS, INPUTS))
            kernels.pack_codes(weights[-1], 0, kind, codes)
        yield f"{kind.numbers}/{kind.group}{'+' * kind.has_offsets}", program(kernels, weights)


def main() -> None:
    """Runs the benchmark."""
    parser = parser_of(__doc__, rounds=7, has_threads=True)
    parser.add_argument("--instruction-set", default="auto", help="see runtime.instruction_set")
    options = parser.parse_args()
    library = find_library()
    if library is None:
        raise SystemExit("the C++ kernels were not built")
    library.set_num_threads(options.threads)
    if options.instruction_set != "auto":
        library.set_variant(options.instruction_set)
    kinds = dict(programs(library))
    machine = f"{processor()}, {options.threads} threads, {library.variant}"
    print(f"{machine}; ms, medians of {options.rounds} rounds\n")
    print(f"| rows | {' | '.join(kinds)} |\n|---:|{'---:|' * len(kinds)}")
    for rows in ROWS:
        x = np.random.default_rng(rows).normal(size=(rows, INPUTS)).astype(np.float32)
        seconds: dict[str, list[float]] = {name: [] for name in kinds}
        for _ in range(options.rounds):
            for name, products in kinds.items():
                products.run([x])
                begin = time.perf_counter()
                products.run([x])
                seconds[name].append(time.perf_counter() - begin)
        medians = {name: statistics.median(values) for name, values in seconds.items()}
        cells = [f"{value * 1e3:.2f} ({value / medians['int8']:.2f})" for value in medians.values()]
        print(f"| {rows} | {' | '.join(cells)} |", flush=True)
