"""Runs the commands of an entry in a fresh folder and writes down all that can be seen of them."""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from recorded.normalise import FILES, normaliser

HERE = Path(__file__).parent
PREPARED = HERE / "prepared"
LONGEST_TEXT = 6000
"""Characters of a file that are kept as text; a longer one is kept as its digest."""
TIME_LIMIT = 600


@dataclass(frozen=True)
class Entry:
    """Commands that are run one after the other in one folder."""

    name: str
    run: tuple[str, ...]
    files: tuple[str, ...] = ()
    stdin: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    rules: tuple[str, ...] = ()
    whole: bool = False
    """Texts are kept whole, however long."""


def read_entries() -> list[Entry]:
    """The entries of commands.yaml."""
    return [_entry(each) for each in yaml.safe_load((HERE / "commands.yaml").read_text(encoding="utf-8"))]


def _entry(content: dict[str, Any]) -> Entry:
    lists = {key: tuple(value) for key, value in content.items() if isinstance(value, list)}
    lines = content["run"].replace("\\\n", "").splitlines()
    return Entry(**{**content, **lists, "run": tuple(" ".join(line.split()) for line in lines)})


@dataclass(frozen=True)
class Checkout:
    """What is run: the checkout at `root` by its interpreter. made: the folder of `prepare`."""

    root: Path
    python: Path
    made: Path

    def command(self, line: str) -> list[str]:
        """The words to run; `mindbatch` and the tools are this checkout's, anything else is the system's."""
        first, *words = shlex.split(line)
        if first == "mindbatch":
            return [str(self.python), "-m", "mindbatch", *words]
        if first.startswith("tools/"):
            return [str(self.python), str(self.root / first), *words]
        return [str(self.python), first, *words] if first.endswith(".py") else [first, *words]


def transcript_of(entry: Entry, checkout: Checkout, keep: Path | None = None) -> str:
    """Exit codes, outputs and files of all commands. keep: a folder that gets a copy of what is left."""
    with tempfile.TemporaryDirectory(prefix="recorded-", dir="/tmp") as scratch:
        here, home = Path(scratch) / "here", Path(scratch) / "home"
        here.mkdir()
        home.mkdir()
        _prepare(here, entry, checkout.made)
        before = _contents(here)
        places = {str(here): "<HERE>", str(home): "<HOME>", str(checkout.root): "<CHECKOUT>"}
        normalise = normaliser(places, entry.rules)
        parts = []
        for number, line in enumerate(entry.run):
            environment = {
                "PATH": os.environ["PATH"], "LANG": "C.UTF-8", "HOME": str(home), **entry.environment,
            }  # fmt: skip
            done = subprocess.run(
                checkout.command(line), cwd=here, env=environment, capture_output=True, check=False,
                input=entry.stdin.encode() if number == 0 else b"", timeout=TIME_LIMIT,
            )  # fmt: skip
            parts.append(f"$ {line}\nexit code {done.returncode}\n")
            for name, data in (("standard output", done.stdout), ("standard error", done.stderr)):
                parts.append(_shown(name, data, normalise, whole=True) if data else "")
        after = _contents(here)
        for path in sorted({*before, *after}):
            if path not in after:
                parts.append(f"--- {path}: removed\n")
            elif before.get(path) != after[path]:
                rule = FILES.get(Path(path).name)
                own = normaliser(places, (*entry.rules, rule)) if rule else normalise
                parts.append(_shown(path, after[path], own, whole=entry.whole))
        if keep is not None:
            shutil.copytree(here, keep / entry.name, symlinks=True)
    return "".join(parts)


def _prepare(here: Path, entry: Entry, made: Path) -> None:
    for name in entry.files:
        source = PREPARED / name if (PREPARED / name).exists() else made / name
        if source.is_dir():
            shutil.copytree(source, here / name)
        else:
            shutil.copy2(source, here / name)


def _contents(folder: Path) -> dict[str, bytes]:
    """Every file and link below the folder, and every empty folder, by its path."""
    found = {}
    for path in folder.rglob("*"):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = b"link to " + os.readlink(path).encode()
        elif path.is_file():
            found[name] = path.read_bytes()
        elif not any(path.iterdir()):
            found[f"{name}/"] = b""
    return found


def _shown(name: str, data: bytes, normalise: Any, *, whole: bool) -> str:
    """The text after normalising, or the digest of what is binary or long."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return f"--- {name}: {len(data)} bytes, sha256 {hashlib.sha256(data).hexdigest()}\n"
    if "\0" in text:
        return f"--- {name}: {len(data)} bytes, sha256 {hashlib.sha256(data).hexdigest()}\n"
    text = normalise(text)
    if len(text) > LONGEST_TEXT and not whole:
        digest = hashlib.sha256(text.encode()).hexdigest()
        return f"--- {name}: {text.count(chr(10))} lines of text, sha256 {digest}\n"
    end = "" if text.endswith("\n") or not text else "\n(no line end)\n"
    return f"--- {name}\n{text}{end}"
