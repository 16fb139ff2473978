"""Runs one maker of fixtures: `PYTHON tests/makers NAME ...`; README.md says which needs what."""

import runpy
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
VERBS = ("make", "record", "save")
"""First words of the makers' names; the other modules here are parts of makers."""
SHARED = ("tests/numerics", "tests/samples", "tests/unit/checkpoint", "tools")
"""Folders of modules that makers share with the tests, and of `ascend_check`."""


def main() -> None:
    """Runs a maker with what follows its name as its arguments."""
    names = sorted(path.stem for verb in VERBS for path in HERE.glob(f"{verb}_*.py"))
    if len(sys.argv) == 1 or sys.argv[1] not in names:
        raise SystemExit("usage: PYTHON tests/makers NAME ...\n" + "\n".join(f"  {name}" for name in names))
    sys.path[1:1] = [str(HERE.parents[1] / folder) for folder in SHARED]
    del sys.argv[0]
    runpy.run_path(str(HERE / f"{sys.argv[0]}.py"), run_name="__main__")


if __name__ == "__main__":
    main()
