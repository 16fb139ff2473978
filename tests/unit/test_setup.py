"""Compilers and setup.py: one that works builds the kernels, any other costs a line and no more."""

import runpy
import stat
from pathlib import Path
from typing import Any

import pytest
import setuptools

CHECKOUT = Path(__file__).parents[2]
GCC = '#!/bin/sh\ncase "$*" in *-dM*) echo "#define __GNUC__ 12";; esac\n'
CLANG = GCC.replace("12", "4\n#define __clang__ 1")
MAKES = 'for last; do [ "$before" = -o ] && : >"$last"; before=$last; done\n'
WORKS = GCC + MAKES
COMPILERS = {
    "none": {},
    "not executable": {"g++": ("#!/bin/sh\n", 0o644)},
    "no program": {"g++": ("\0\1garbage", 0o755)},
    "no C++": {"gcc": (WORKS, 0o755)},
    "fails": {"g++": ("#!/bin/sh\necho cannot execute cc1plus >&2\nexit 1\n", 0o755)},
    "fails at link": {
        "g++": (WORKS + 'case " $* " in *" -shared "*) echo no -lstdc++ >&2; exit 1;; esac\n', 0o755)
    },
    "makes nothing": {"g++": (GCC, 0o755)},
    "Clang, which does not know GCC's dialect": {"c++": (CLANG + MAKES, 0o755)},
    "killed": {"g++": ("#!/bin/sh\nkill -9 $$\n", 0o755)},
}


def build(folder: Path, monkeypatch: pytest.MonkeyPatch, programs: dict[str, tuple[str, int]]) -> list[Path]:
    """Runs build_ext with these programs on the PATH and no others; returns the libraries that it made."""
    arguments: dict[str, Any] = {}
    monkeypatch.setattr(setuptools, "setup", lambda **given: arguments.update(given))
    monkeypatch.chdir(CHECKOUT)
    runpy.run_path(str(CHECKOUT / "setup.py"))
    (folder / "bin").mkdir()
    for name, (text, mode) in programs.items():
        (folder / "bin" / name).write_text(text)
        (folder / "bin" / name).chmod(mode)
    for variable in ("CC", "CXX", "LDSHARED", "LDCXXSHARED", "CFLAGS", "LDFLAGS"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("PATH", str(folder / "bin"))
    extensions = arguments["ext_modules"]
    command = arguments["cmdclass"]["build_ext"](setuptools.Distribution({"ext_modules": extensions}))
    command.build_lib, command.build_temp = str(folder / "lib"), str(folder / "temp")
    command.ensure_finalized()
    command.run()
    return [*(folder / "lib").rglob("*.so")]


@pytest.mark.parametrize("name", COMPILERS)
def test_a_compiler_that_does_not_work_costs_a_line(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert build(tmp_path, monkeypatch, COMPILERS[name]) == []
    (line,) = [line for line in capfd.readouterr().err.splitlines() if line.startswith("mindbatch: ")]
    assert line.startswith("mindbatch: the C++ kernels were not built (")
    assert "a fifth of the speed" in line
    assert line.endswith("--no-cache-dir --force-reinstall --no-deps")


@pytest.mark.parametrize("names", [("g++",), ("c++",), ("c++", "g++")])
def test_any_gcc_that_is_there_builds_one_library_for_every_python(
    names: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    *others, gcc = names
    programs = dict.fromkeys(others, (CLANG + "exit 1\n", 0o755)) | {gcc: (WORKS, 0o755)}
    (library,) = build(tmp_path, monkeypatch, programs)
    assert library.name == "_cpu.so"
    assert library.stat().st_mode & stat.S_IRUSR
    assert "not built" not in capfd.readouterr().err
