"""Running the command as a user does: in an empty folder, with an empty home."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

LANGUAGE = ("PATH", "LANG", "LC_ALL")


class CommandLine:
    """Runs `python -m mindbatch` in `here` and sees to it that nothing is left there."""

    def __init__(self, folder: Path) -> None:
        self.here, self.home = folder / "here", folder / "home"
        self.here.mkdir()
        self.home.mkdir()

    def run(
        self,
        *arguments: str,
        stdin: bytes = b"",
        leaves: Sequence[str] = (),
        environment: dict[str, str] | None = None,
    ) -> "subprocess.CompletedProcess[str]":
        """The finished run; exactly the files of `leaves` may be in the folder afterwards."""
        keep = {name: os.environ[name] for name in LANGUAGE if name in os.environ}
        result = subprocess.run(
            [sys.executable, "-m", "mindbatch", *arguments],
            cwd=self.here,
            env={**keep, "HOME": str(self.home), **(environment or {})},
            input=stdin,
            capture_output=True,
            timeout=300,
            check=False,
        )
        assert sorted(os.listdir(self.here)) == sorted(leaves)
        return subprocess.CompletedProcess(
            result.args, result.returncode, result.stdout.decode(), result.stderr.decode()
        )
