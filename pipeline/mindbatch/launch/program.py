"""Other people's programs as child processes: msrun, mpirun, ssh and the like die with their parent, too."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from mindbatch.io import children


def program_command(program: Sequence[str], folder: Path | None = None) -> list[str]:
    """The command, for `children.spawn`, that becomes a program; its arguments arrive as they are.

    folder: that it runs in; None is this process's.

    The kernel kills the program when this process ends. What the program starts has to see to that itself.
    """
    return children.command(become, str(folder or Path.cwd()), *program)


def become(folder: str, *program: str) -> NoReturn:
    """Goes on as the program, which is looked up in PATH. Raises OSError where there is none."""
    os.chdir(folder)
    os.execvp(program[0], program)
