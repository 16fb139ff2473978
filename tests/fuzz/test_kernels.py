"""The C++ kernels under AddressSanitizer, UBSan and ThreadSanitizer: odd shapes, and ids outside.

kernels/driver.cpp says what is run. Every buffer is exactly as large as it must be. One that is a number
short must be noticed: the kernel uses all of it, and the sanitizer would see one number more.
"""

from __future__ import annotations

import os
import platform
import runpy
import shutil
import subprocess
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

ROOT = Path(__file__).parents[2]
SOURCES, DRIVER = ROOT / "pipeline/mindbatch/kernels/csrc", Path(__file__).parent / "kernels"
IS_X86 = platform.machine() == "x86_64"
VARIANTS = ("portable", "avx2", "avx512") if IS_X86 else ("portable",)
# Their instructions are emulated (csrc/instructions.h): the processor need not have them.
EMULATED = ("avx512_vnni", "avx512_bf16", "amx") if IS_X86 else ()
MEMORY = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
THREADS = ["-fsanitize=thread"]
BUFFERS = {
    "linear": "x weights bias y",
    "embed": "ids weights y",
    "norm": "x residual weight bias settings y sum",
    "rotary": "qkv cos sin query_norm key_norm settings out",
    "activation": "x settings y",
    "xielu": "x positive negative settings y",
    "adapters": "x weights bias slots arena table settings y",
    "adapted_embed": "ids weights slots arena table settings y",
    "experts": "x router correction up down router_bias up_bias down_bias scale logits settings y",
    "angles": "positions settings cos sin",
    "rows": "numbers table y",
    "convolution": "x weights bias state rows positions states settings y",
    "delta": "qkv gates decay bias state rows positions states settings y",
    "gated": "x gate weight settings y",
    "group_norm": "x weight settings y",
    "tempered": "qkv positions settings y",
    "likeliest": "scores places normalisers",
    "choice": "logits scores places normalisers tokens",
    "program": "ids first local table factor rows scaled y",
    "attention": "qkv keys values slots rows tables lengths sinks settings out bfloat16_keys bfloat16_values",
    "distance": "qkv keys values slots rows tables lengths firsts positions bias settings out "
    "bfloat16_keys bfloat16_values",
    "cross": "qkv keys values rows tables lengths settings out bfloat16_keys bfloat16_values",
    "write": "qkv keys values slots settings bfloat16_keys bfloat16_values",
    "bfloat16": "rows weights x bias y rows_of",
    "int8": "rows weights x bias y rows_of",
    "fused": "x residual weight norm_bias settings activated kind weights bias sum y",
}
NAMES = [f"{kernel}.{buffer}" for kernel, buffers in BUFFERS.items() for buffer in buffers.split()]
ROUNDED = [name for name in NAMES if name.startswith(("bfloat16.", "int8.", "fused."))]
ONE_OF_EACH = (
    "linear.weights",
    "embed.weights",
    "norm.sum",
    "rotary.cos",
    "activation.y",
    "attention.values",
    "distance.bias",
    "distance.firsts",
    "cross.lengths",
    "write.bfloat16_values",
    "adapters.arena",
    "experts.router",
    "experts.logits",
    "convolution.state",
    "delta.state",
    "gated.gate",
    "tempered.positions",
    "angles.sin",
    "likeliest.scores",
    "choice.logits",
    "program.scaled",
    "bfloat16.weights",
    "int8.x",
    "fused.sum",
)

pytestmark = pytest.mark.builds


def _setup() -> dict[str, Any]:
    """What setup.py defines: the flags that the product is built with."""
    with patch("setuptools.setup"):
        return runpy.run_path(str(ROOT / "setup.py"))


def _compile(sources: Iterable[Path], target: Path, flags: list[str]) -> None:
    setup = _setup()
    # Without optimizing it takes two thirds of the time to compile.
    common = [*setup["COMMON_FLAGS"], "-O0", "-g1", f"-I{SOURCES}"]  # the last -O holds

    def one(source: Path) -> str:
        place = target.with_name(f"{target.name}_{source.stem}.o")
        # What only calls the kernels is not itself looked at: half the time.
        special = setup["VARIANT_FLAGS"].get(source.stem, []) + (flags if source.stem != "driver" else [])
        if source.stem == "instruction_sets" or source.stem in setup["X86_EXTENSIONS"]:
            special += [
                "-DMB_EMULATED",
                "-Wno-psabi",
                *map(setup["extension_macro"], setup["X86_EXTENSIONS"] if IS_X86 else ()),
            ]
        _run(["g++", *common, *special, "-c", str(source), "-o", str(place)])
        return str(place)

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        objects = list(pool.map(one, sources))
    _run(["g++", *flags, "-pthread", *objects, "-o", str(target)])


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]


def _need(flags: list[str], folder: Path) -> None:
    """Skips where this machine cannot build or run with a sanitizer."""
    if shutil.which("g++") is None:
        pytest.skip("g++ is not installed")
    (folder / "empty.cpp").write_text("int main() {}")
    built = subprocess.run(
        ["g++", *flags, "empty.cpp", "-o", "empty"], cwd=folder, capture_output=True, text=True
    )
    ran = built.returncode or subprocess.run([folder / "empty"], capture_output=True).returncode
    if ran != 0:
        pytest.skip(f"g++ cannot build for {flags[0]}: {built.stderr.strip()[-200:]}")


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kernels")
    _need(MEMORY, folder)
    kernels = [SOURCES / f"variant_{name}.cpp" for name in (*VARIANTS, *EMULATED)]
    ours = [DRIVER / "driver.cpp", DRIVER / "exact_pool.cpp"]
    others = [
        SOURCES / f"{name}.cpp"
        for name in (
            "mindspore_ops",
            "adapter_ops",
            "fused_ops",
            "experts",
            "latent_ops",
            "recurrent_ops",
            "routing",
            "elementary",
            "packing",
            "process_group",
            "instruction_sets",
            "step_ops",
            "program",
        )
    ]
    _compile([*kernels, *others, *ours], folder / "driver", MEMORY)
    return folder / "driver"


def _drive(driver: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "ASAN_OPTIONS": "detect_leaks=0", "UBSAN_OPTIONS": "print_stacktrace=1"}
    done = subprocess.run([driver, *map(str, arguments)], env=environment, capture_output=True, text=True)
    if done.returncode == 3:
        pytest.skip(f"this machine has no {arguments[0]}")
    return done


def _must_be_right(driver: Path, variant: str, seed: int, cases: int) -> None:
    done = _drive(driver, variant, seed, cases)
    assert done.stdout == "all kernels are right\n", f"{variant}, seed {seed}: {done.stderr[-4000:]}"


def _must_be_noticed(driver: Path, variant: str, buffer: str) -> None:
    assert "ERROR: AddressSanitizer" in _drive(driver, variant, 1, 0, buffer).stderr, f"{variant}: {buffer}"


@pytest.mark.parametrize("variant", [*VARIANTS, *EMULATED])
def test_no_kernel_leaves_its_buffers(driver: Path, variant: str) -> None:
    _must_be_right(driver, variant, seed=1, cases=3)


@pytest.mark.parametrize("buffer", ONE_OF_EACH)
def test_a_planted_overflow_is_noticed(driver: Path, buffer: str) -> None:
    _must_be_noticed(driver, "portable", buffer)


@pytest.mark.on_demand
@pytest.mark.parametrize("variant", [*VARIANTS, *EMULATED])
def test_thousands_of_shapes_and_every_overflow(driver: Path, variant: str) -> None:
    for seed in range(10):
        _must_be_right(driver, variant, seed, cases=300)
    for buffer in NAMES if variant in VARIANTS else ROUNDED:
        _must_be_noticed(driver, variant, buffer)


def _must_have_no_race(program: Path, said: str) -> None:
    environment = {**os.environ, "TSAN_OPTIONS": "exitcode=66"}
    done = subprocess.run([program], env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, said), done.stderr[-4000:]
    planted = subprocess.run([program, "race"], env=environment, capture_output=True, text=True)
    assert "ThreadSanitizer: data race" in planted.stderr


def test_the_thread_pool_has_no_race(tmp_path: Path) -> None:
    _need(THREADS, tmp_path)
    _compile([DRIVER / "threads.cpp", SOURCES / "thread_pool.cpp"], tmp_path / "threads", THREADS)
    _must_have_no_race(tmp_path / "threads", "every task ran once\n")


def test_layers_of_experts_have_no_race(tmp_path: Path) -> None:
    _need(THREADS, tmp_path)
    ours = (
        *("variant_portable", "experts", "routing", "elementary"),
        *("mindspore_ops", "process_group", "thread_pool"),
    )
    sources = [DRIVER / "expert_threads.cpp", *(SOURCES / f"{name}.cpp" for name in ours)]
    _compile(sources, tmp_path / "experts", THREADS)
    _must_have_no_race(tmp_path / "experts", "every row is right\n")


@pytest.mark.parametrize("flags", [MEMORY, THREADS], ids=["memory", "threads"])
def test_process_groups_have_no_race(flags: list[str], tmp_path: Path) -> None:
    _need(flags, tmp_path)
    _compile([DRIVER / "ranks.cpp"], tmp_path / "ranks", flags)
    environment = {**os.environ, "TSAN_OPTIONS": "exitcode=66", "ASAN_OPTIONS": "detect_leaks=0"}
    done = subprocess.run([tmp_path / "ranks"], env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "every number is right\n"), done.stderr[-4000:]
    if flags is THREADS:
        planted = subprocess.run(
            [tmp_path / "ranks", "race"], env=environment, capture_output=True, text=True
        )
        assert "ThreadSanitizer: data race" in planted.stderr
