"""The page of the server, with answers in place of a server: batches, their files, its width on a phone."""

import json
import re
import subprocess
from importlib.resources import files
from pathlib import Path

from browser import CHROMIUM, PHONE, needs_chromium, width_on_a_phone

PAGE = files("mindbatch.server").joinpath("page.html").read_text(encoding="utf-8")
COUNTS = {"total": 9, "completed": 4, "failed": 2}
BATCHES = [
    {"id": f"batch_{'0123456789abcdef' * 3}", "status": status, "request_counts": COUNTS, "created_at": 1}
    | ends
    for status, ends in (
        ("in_progress", {"output_file_id": None, "error_file_id": None}),
        ("completed", {"output_file_id": "file-1", "error_file_id": "file-2"}),
    )
]
ANSWERS = {
    "/ready": {"status": "ready"},
    "/metrics": {},
    "/v1/batches?limit=100": {"data": BATCHES},
    "/v1/models": {"data": [{"id": "a-model", "parent": None, "max_model_len": 7}]},
}


def answered() -> str:
    """The page whose requests get ANSWERS."""
    answer = "({ok: true, json: async () => ANSWERS[path], text: async () => ''})"
    stub = f"const ANSWERS = {json.dumps(ANSWERS)}; window.fetch = async path => {answer};"
    return PAGE.replace('"use strict";', f'"use strict";{stub}', 1)


@needs_chromium
def test_nothing_is_wider_than_a_phone(tmp_path: Path) -> None:
    assert width_on_a_phone(answered(), tmp_path) <= PHONE


@needs_chromium
def test_a_batch_has_links_to_its_files_and_one_that_runs_can_be_cancelled(tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(answered())
    flags = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
    command = [
        str(CHROMIUM),
        *flags,
        "--virtual-time-budget=3000",
        "--dump-dom",
        f"file://{tmp_path}/page.html",
    ]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    running, completed = re.findall(r"<tr>.*?</tr>", shown[shown.index('<tbody id="batches">') :])
    assert "<button>cancel</button>" in running
    assert "href" not in running
    assert re.findall('href="([^"]*)"', completed) == ["/v1/files/file-1/content", "/v1/files/file-2/content"]
    assert "cancel" not in completed
