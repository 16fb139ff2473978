"""What a page shows: its tags and texts, and how wide it is on a phone, where chromium is installed."""

import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest

CHROMIUM = shutil.which("chromium")
PHONE = 360
"""Pixels; a window is never as narrow, a frame in it may be."""
_FRAME = """<iframe style="border: 0; width: {width}px; height: 900px" src="framed.html"></iframe><script>
document.querySelector("iframe").onload = event => {{
  const page = event.target.contentDocument;
  for (const details of page.querySelectorAll("details")) details.open = true;
  document.title = "width " + page.documentElement.scrollWidth;
}};</script>"""

needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")


class Tags(HTMLParser):
    """What a reader of the markup sees: every tag with its attributes, and the text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def width_on_a_phone(page: str, folder: Path) -> int:
    """Of all that a page has, in pixels; not above PHONE where nothing runs out of it."""
    (folder / "framed.html").write_text(re.sub('<meta http-equiv="Content-Sec[^>]*>', "", page))
    (folder / "frame.html").write_text(_FRAME.format(width=PHONE))
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files"]
    done = subprocess.run(
        [
            str(CHROMIUM),
            *flags,
            f"--user-data-dir={folder / 'profile'}",
            "--virtual-time-budget=5000",
            "--dump-dom",
            f"file://{folder / 'frame.html'}",
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    found = re.search(r"<title>width (\d+)</title>", done.stdout)
    assert found is not None, done.stderr
    return int(found[1])
