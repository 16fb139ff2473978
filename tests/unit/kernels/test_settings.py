"""Settings of operations: one declaration, which Python writes as words and C++ reads as structs."""

import shutil
import subprocess
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mindbatch.kernels.native import NativeFunctions, ProcessGroups, operation_layout
from mindbatch.kernels.native_library import find_library
from mindbatch.kernels.recording import OPERATIONS
from mindbatch.kernels.settings import (
    Maybe,
    Number,
    Numbers,
    OneOf,
    SettingLayout,
    Struct,
    encoded,
    layout_of,
)
from mindbatch.kernels.settings_header import HEADER, header, import_operations, operation_layouts
from mindbatch.kernels.shapes import Activation, Alibi, AttentionShape


def test_the_header_is_what_the_declarations_give() -> None:
    assert HEADER.read_text(encoding="utf-8") == header(), "python -m mindbatch.kernels.settings_header"


def test_the_words_of_settings() -> None:
    def bits(*numbers: float) -> list[int]:
        return np.array(numbers, np.float32).view(np.int32).tolist()

    shape = AttentionShape(heads=2, kv_heads=1, head_dim=8, scale=0.5, window=3, is_chunked=True)
    plain = [2, 1, 8, *bits(0.5), 3, 0, *bits(0), 0, 1]
    layout = operation_layout("attention")
    words = encoded(layout, {"shape": shape, "is_rounded": True})
    assert words.dtype == np.int32
    assert words.tolist() == [*plain, 1]
    alibi = Alibi((1.0, 0.25), factor=2.0, is_rounded=True)
    shape = AttentionShape(heads=2, kv_heads=1, head_dim=8, scale=0.5, alibi=alibi, has_sinks=True)
    words = encoded(layout, {"shape": shape, "is_rounded": False})
    assert words.tolist() == [2, 1, 8, *bits(0.5), 0, 1, 2, *bits(1, 0.25, 2), 1, *bits(0), 1, 0, 0]
    words = encoded(operation_layout("activation"), {"kind": "silu", "gated": True})
    assert words.tolist() == [2, 1]


def test_a_setting_that_has_no_words() -> None:
    with pytest.raises(TypeError, match="a setting of type"):
        layout_of(str)
    with pytest.raises(ValueError, match="not in tuple"):
        encoded(Struct("Any", (("kind", layout_of(Activation)),)), {"kind": "tanh"})


def filled(layout: SettingLayout, numbers: Iterator[int], is_full: bool) -> Any:
    """Values that differ from one another; is_full: flags begin with True, and optional parts are there."""
    match layout:
        case Number(type=kind):
            number = next(numbers)
            return (number % 2 == 0) == is_full if kind is bool else number + 0.5 if kind is float else number
        case Numbers(item=item):
            return tuple(filled(item, numbers, is_full) for _ in range(3 if is_full else 0))
        case OneOf(names=names):
            return names[next(numbers) % len(names)]
        case Maybe(layout=inner):
            return filled(inner, numbers, is_full) if is_full else None
        case Struct(parts=parts):
            return SimpleNamespace(**{name: filled(part, numbers, is_full) for name, part in parts})


def leaves(layout: SettingLayout, value: Any, name: str) -> Iterator[tuple[str, float]]:
    """Expressions of C++ for all numbers of settings, and what they must be."""
    match layout:
        case Number():
            yield name, value
        case Numbers(item=item):
            yield f"{name}.count", len(value)
            for place, number in enumerate(value):
                yield from leaves(item, number, f"{name}[{place}]")
        case OneOf(names=names):
            yield name, names.index(value)
        case Maybe(layout=inner):
            yield f"{name}.has_value()", value is not None
            if value is not None:
                yield from leaves(inner, value, f"(*{name})")
        case Struct(parts=parts):
            for part_name, part in parts:
                yield from leaves(part, getattr(value, part_name), f"{name}.{part_name}")


@pytest.mark.slow
def test_cpp_reads_what_python_writes(tmp_path: Path) -> None:
    """Every field of every operation, by its name."""
    if (compiler := shutil.which("g++") or shutil.which("c++")) is None:
        pytest.skip("no C++ compiler")
    lines, expected = list[str](), list[str]()
    for layout in operation_layouts():
        for is_full in (True, False):
            value = filled(layout, count(1), is_full)
            words = ", ".join(map(str, encoded(layout, vars(value))))
            lines += ["{", f"const int32_t words[] = {{{words}}};"]
            lines.append(f"const auto settings = read_settings<{layout.name}>(words);")
            for name, number in leaves(layout, value, "settings"):
                lines.append(f'std::printf("{layout.name} {name} %g\\n", static_cast<double>({name}));')
                expected.append(f"{layout.name} {name} {float(number):g}")
            lines.append("}")
    body = "\n".join(lines)
    source, program = tmp_path / "fields.cpp", tmp_path / "fields"
    source.write_text(
        f'#include <cstdio>\n#include "settings.h"\nusing namespace mindbatch;\nint main() {{\n{body}\n}}\n'
    )
    subprocess.run(
        [compiler, "-std=c++17", f"-I{HEADER.parent}", str(source), "-o", str(program)], check=True
    )
    printed = subprocess.run([str(program)], check=True, capture_output=True, text=True).stdout
    assert printed.splitlines() == expected


def test_the_library_has_a_function_for_each_operation_and_type() -> None:
    if (library := find_library()) is None:
        pytest.skip("the C++ kernels were not built")
    import_operations()
    for weights in ("", "_bfloat16", "_int8"):
        for cache in ("", "_bfloat16"):
            functions = NativeFunctions(ProcessGroups(library), weights, cache, is_rounded=False)
            names = {functions.name(operation) for operation in OPERATIONS}
            assert not {name for name in names if not hasattr(library.handle, name)}
