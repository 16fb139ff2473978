"""Models given by their name on a hub: jobs that fetch them, are killed meanwhile, and need it no more."""

import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path
from threading import Event

import pytest

from hub_server import COMMIT, Hub

pytestmark = pytest.mark.slow

MODEL = Path(__file__).resolve().parents[2] / "examples/tiny_gpt2"
FILES = {path.name: path.read_bytes() for path in MODEL.iterdir() if path.is_file()}
NAME = "model.checkpoint_name_or_path=org/model"
BATCH = ["batch", NAME, "data=number_words", "data.limit=4", "decoding.max_new_tokens=4", "output.dir=run"]


def environment(home: Path, hub: Hub) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "HOME": str(home), "HF_ENDPOINT": hub.address}


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "mindbatch", *arguments]


def test_a_job_that_is_killed_while_it_fetches_goes_on_and_later_needs_no_hub(tmp_path: Path) -> None:
    cache = tmp_path / ".cache/huggingface/hub/models--org--model/blobs"

    def run() -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            command(*BATCH, "model.download=true"),
            cwd=tmp_path,
            env=environment(tmp_path, hub),
            capture_output=True,
            text=True,
            check=False,
        )

    with Hub(FILES, gate=Event()) as hub:
        assert hub.gate is not None
        job = subprocess.Popen(
            command(*BATCH, "model.download=true"),
            cwd=tmp_path,
            env=environment(tmp_path, hub),
            stderr=subprocess.DEVNULL,
        )
        while not sum(path.stat().st_size for path in cache.glob("*.incomplete")) > 1 << 20:
            assert job.poll() is None
            time.sleep(0.02)
        job.send_signal(signal.SIGKILL)
        job.wait()
        hub.gate.set()
        hub.requests.clear()
        done = run()
        assert done.returncode == 0, done.stderr
        assert len([line for line in hub.requests if line.startswith("GET /org/model")]) == 1, (
            "the rest of one"
        )
    record = json.loads((tmp_path / "run/run.json").read_text())["hub"]
    assert (record["name"], record["commit"], record["hub"]) == ("org/model", COMMIT, hub.address)
    assert record["files"]["model.safetensors"].startswith("sha256:")
    assert COMMIT in (tmp_path / "run/config.yaml").read_text()
    again = run()
    assert again.returncode == 0, again.stderr
    assert "fetching" not in again.stderr


@pytest.mark.parametrize("answer", ["y", "n"])
def test_on_a_terminal_the_user_is_asked(answer: str, tmp_path: Path) -> None:
    with Hub(FILES) as hub:
        child, terminal = pty.fork()
        if child == 0:
            os.chdir(tmp_path)
            words = command("generate", NAME, 'prompts=["9 + 8 ="]', "decoding.max_new_tokens=3")
            os.execve(sys.executable, words, environment(tmp_path, hub))
        shown = b""
        while b"[y/N]" not in shown:
            shown += os.read(terminal, 4096)
        os.write(terminal, f"{answer}\n".encode())
        while chunk := _read(terminal):
            shown += chunk
        _, status = os.waitpid(child, 0)
        os.close(terminal)
    assert b"org/model is not here; fetch 5 files, 2.2 MiB, from http://127.0.0.1:" in shown
    if answer == "y":
        assert b"9 + 8 = 17" in shown
        assert os.waitstatus_to_exitcode(status) == 0
    else:
        assert b"not fetched; give a folder, or model.download=true" in shown
        assert os.waitstatus_to_exitcode(status) == 2


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 4096)
    except OSError:  # the other end is closed
        return b""


def test_nothing_is_fetched_while_anything_else_is_wrong(tmp_path: Path) -> None:
    with Hub(FILES) as hub:
        result = subprocess.run(
            command(
                "generate",
                NAME,
                "model.download=true",
                "prompts=[a]",
                "decoding.top_p=7",
                "model.revision=../x",
            ),
            cwd=tmp_path,
            env=environment(tmp_path, hub),
            capture_output=True,
            text=True,
            check=False,
        )
    assert result.returncode == 2
    assert "decoding.top_p=7" in result.stderr
    assert "model.revision=../x: must be the name of a branch or tag, or a commit" in result.stderr
    assert hub.requests == []
