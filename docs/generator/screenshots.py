"""Takes the screenshots of docs/images: the pages of an evaluation and a run, the progress of a batch.

python docs/generator/screenshots.py [--chromium PATH]

All are of the shipped model, and take a minute. Chromium draws them without a window.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import pty
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
from pathlib import Path

from PIL import Image
from rich.console import Console
from rich.text import Text

IMAGES = Path(__file__).resolve().parents[1] / "images"
MOST_BYTES = 150_000
COLUMNS = 100
SCALE = 1.5
UNSEEN = 400
"""Pixels of a window's height that Chromium may keep for itself."""
EVALUATE = (
    "evaluate", "model=tiny_gpt2", "data=number_words_even", "metrics=[exact_match,perplexity]",
    "lora.adapters={base: null, even: shipped:examples/adapters/even}", "report=report.html",
)  # fmt: skip
BATCH = ("batch", "model=tiny_gpt2", "data.path=questions.jsonl", "data.key_column=id", "output.dir=runs/a")
_CLEAR = "\x1b[1A\x1b[2K"
"""Goes before each drawing of the two lines of progress."""
_TERMINAL = """<!doctype html><meta charset="utf-8"><style>
body {{ margin: 0; background: #1c1f26; color: #d8dee9; }}
pre {{ margin: 18px 22px; font: 15px/1.5 "DejaVu Sans Mono", monospace; }}
</style><pre><span style="color: #8fbcbb">$</span> {command}
{lines}</pre>"""


def main() -> None:
    """Writes the images."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--chromium", default=shutil.which("chromium"), help="the program")
    chromium = parser.parse_args().chromium
    if chromium is None:
        parser.error("chromium was not found; name it: --chromium PATH")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        command = [sys.executable, "-m", "mindbatch", *EVALUATE]
        subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
        draw(chromium, folder / "report.html", (900, 1300), IMAGES / "evaluation.png")
        page = folder / "terminal.html"
        page.write_text(terminal_page(progress_of_a_batch(folder)), encoding="utf-8")
        draw(chromium, page, (960, 110), IMAGES / "progress.png")
        command = [sys.executable, "-m", "mindbatch", "runs", "runs/a", "report=run.html"]
        subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
        draw(chromium, folder / "run.html", (1100, 880), IMAGES / "run.png")


def progress_of_a_batch(folder: Path) -> str:
    """The lines that a terminal shows when half of the rows are done."""
    rows = ({"id": f"q{row}", "prompt": f"{row % 40} + {row % 37} ="} for row in range(2000))
    (folder / "questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    drawings = on_a_terminal([sys.executable, "-m", "mindbatch", *BATCH], folder).split(_CLEAR)
    shown = [drawing for drawing in drawings if "left" in drawing]
    return shown[len(shown) // 2].rpartition("\r\x1b[2K")[0].replace("\r\n", "\n")


def on_a_terminal(command: list[str], folder: Path) -> str:
    """What the command writes to a terminal of COLUMNS columns."""
    process, terminal = pty.fork()
    if process == 0:
        os.chdir(folder)
        os.environ.update(TERM="xterm-256color", COLUMNS=str(COLUMNS), LINES="24")
        os.execv(command[0], command)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, COLUMNS, 0, 0))
    written = b""
    try:
        while part := os.read(terminal, 65536):
            written += part
    except OSError:  # the other end is closed: the command has ended
        pass
    os.waitpid(process, 0)
    return written.decode()


def terminal_page(lines: str) -> str:
    """A page that looks like a terminal with the command and its coloured lines."""
    console = Console(record=True, width=COLUMNS, file=open(os.devnull, "w"), force_terminal=True)  # noqa: SIM115
    console.print(Text.from_ansi(lines))
    html = console.export_html(inline_styles=True, code_format="{code}")
    return _TERMINAL.format(command=" ".join(("mindbatch", *BATCH)), lines=html)


def draw(chromium: str, page: Path, size: tuple[int, int], image: Path) -> None:
    """Draws a page's upper left corner, in CSS pixels, as an image of at most MOST_BYTES and 128 colours."""
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    flags.append(f"--force-device-scale-factor={SCALE}")
    with tempfile.TemporaryDirectory() as profile:
        drawn = Path(profile, "drawn.png")
        place = [
            f"--user-data-dir={profile}",
            f"--window-size={size[0]},{size[1] + UNSEEN}",
            f"--screenshot={drawn}",
        ]
        subprocess.run([chromium, *flags, *place, page.as_uri()], check=True, capture_output=True)
        image.parent.mkdir(exist_ok=True)
        corner = (0, 0, int(size[0] * SCALE), int(size[1] * SCALE))
        Image.open(drawn).convert("RGB").crop(corner).quantize(128).save(image, optimize=True)
    if image.stat().st_size > MOST_BYTES:
        sys.exit(f"{image}: {image.stat().st_size} bytes; at most {MOST_BYTES}")
    print(image, image.stat().st_size)


if __name__ == "__main__":
    main()
