"""Runs a benchmark: `python tools/bench NAME ...`; without a name, lists all. README.md says which to run."""

from __future__ import annotations

import ast
import importlib
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
SUBJECTS = {
    "decode": ("decode", "precision", "products", "experts", "speculation"),
    "strategies": ("strategies",),
    "batch": ("batch", "memory", "choices"),
    "peers": ("peers", "gguf"),
    "exactness": ("exactness", "gemma"),
    "lora": ("lora",),
    "load": ("load",),
    "processes": ("parallel", "start", "scaling"),
    "reshard": ("reshard",),
    "serve": ("serve", "llamacpp_server"),
}
"""The benchmarks in each folder, by module name."""
MODULES = {name: f"{folder}.{name}" for folder, names in SUBJECTS.items() for name in names}


def listing() -> str:
    """Returns a line for each benchmark: its name and the first line of its docstring."""
    lines = ["usage: python tools/bench NAME [--help] [options]", ""]
    for name, module in MODULES.items():
        source = (HERE / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8")
        docstring = ast.get_docstring(ast.parse(source)) or ""
        lines.append(f"  {name:<16} {docstring.partition(chr(10))[0]}")
    return "\n".join(lines)


def main() -> None:
    """Runs the `main` of a benchmark, or of a worker that `child_process.command` names by its module."""
    program, *names = sys.argv
    if not names or names[0] in ("-h", "--help"):
        print(listing())
        return
    name = names[0]
    if name not in MODULES and "." not in name:
        raise SystemExit(f"{name}: no such benchmark\n{listing()}")
    # The folder of this file would be first, and its modules would hide those of other packages.
    sys.path[0] = str(HERE.parent)
    sys.argv = [f"{program} {name}", *names[1:]]
    sys.exit(importlib.import_module(f"bench.{MODULES.get(name, name)}").main())


if __name__ == "__main__":
    main()
