"""Checks the arguments of a script's program with any Python, before minutes go into an environment for it.

    python -I check_arguments.py MODULE ARGUMENTS...

Exit code 100: they are right. Others are the program's own, which has said what is wrong, or shown its help.
The programs read their arguments with the standard library alone.
"""

import sys
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "pipeline"))
import_module(sys.argv.pop(1)).check_arguments()
