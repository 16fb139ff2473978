"""Writes csrc/settings.h, in which C++ reads settings: python -m mindbatch.kernels.settings_header."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from zlib import crc32

from mindbatch.kernels import operations
from mindbatch.kernels.native import operation_layout
from mindbatch.kernels.recording import OPERATIONS
from mindbatch.kernels.settings import Maybe, Number, Numbers, SettingLayout, Struct
from mindbatch.kernels.shapes import OneOf

HEADER = Path(__file__).with_name("csrc") / "settings.h"
_TYPES = {int: "int64_t", float: "float", bool: "bool"}
_ITEMS = {int: "int32_t", float: "float"}
_TOP = """\
// Settings of operations, read from the words that kernels/settings.py makes of them.
// Written by python -m mindbatch.kernels.settings_header: change the operations' NumPy functions instead.
#pragma once
#include "words.h"

namespace mindbatch {

// Of all that follows; a library with another one was built from other settings (kernels/native_library.py).
constexpr uint32_t kSettingsDigest = {digest}u;
"""


def import_operations() -> None:
    """Declares all operations: a process imports only those of its models."""
    for module in iter_modules(operations.__path__):
        import_module(f"{operations.__name__}.{module.name}")


def operation_layouts() -> list[Struct]:
    """The layouts of all operations that have settings, in the order of their names."""
    import_operations()
    layouts = (operation_layout(name) for name in sorted(OPERATIONS))
    return [layout for layout in layouts if layout.parts]


def header() -> str:
    """The text of settings.h: what operations have in common first, then a struct for each."""
    layouts = operation_layouts()
    shared = dict.fromkeys(part for layout in layouts for part in _named_parts(layout))
    names = [part.enum if isinstance(part, OneOf) else part.name for part in (*shared, *layouts)]
    assert len({*names}) == len(names), "one name, one layout"
    texts = [_enum(part) if isinstance(part, OneOf) else _struct(part) for part in (*shared, *layouts)]
    structs = "\n".join([*texts, "}  // namespace mindbatch\n"])
    return f"{_TOP.replace('{digest}', str(crc32(structs.encode())))}\n{structs}"


def _named_parts(struct: Struct) -> Iterator[OneOf | Struct]:
    """Enums and structs within a struct, each behind those within itself."""
    for _, part in struct.parts:
        inner = part.layout if isinstance(part, Maybe) else part
        if isinstance(inner, Struct):
            yield from _named_parts(inner)
        if isinstance(inner, Struct | OneOf):
            yield inner


def _enum(names: OneOf) -> str:
    constants = ("k" + "".join(map(str.capitalize, name.split("_"))) for name in names.names)
    return f"enum {names.enum} : int32_t {{ {', '.join(constants)} }};\n"


def _struct(struct: Struct) -> str:
    members = "".join(f"  {_type(part)} {name};\n" for name, part in struct.parts)
    names = ", ".join(name for name, _ in struct.parts)
    visit = f"  template <class Parts>\n  void visit(Parts& parts) {{ parts({names}); }}\n"
    return f"struct {struct.name} {{\n{members}\n{visit}}};\n"


def _type(layout: SettingLayout) -> str:
    match layout:
        case Number(type=kind):
            return _TYPES[kind]
        case Numbers(item=item):
            return f"Numbers<{_ITEMS[item.type]}>"
        case OneOf(enum=name) | Struct(name=name):
            return name
        case Maybe(layout=inner):
            return f"std::optional<{_type(inner)}>"


if __name__ == "__main__":
    HEADER.write_text(header(), encoding="utf-8")
