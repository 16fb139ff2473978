"""Data and results elsewhere: commands that fetch, are killed while they upload, and upload then."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from threading import Event

import pytest

from dataset_hub import DatasetHub
from object_stores import S3Store

pytest.importorskip("s3fs")

pytestmark = pytest.mark.slow

ROWS = b"".join(b'{"prompt": "%d + 1 ="}\n' % number for number in range(4))


def run(command: list[str], folder: Path, environment: dict[str, str]) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_a_command_that_is_killed_while_it_uploads(tmp_path: Path) -> None:
    words = [
        "batch",
        "model=tiny_gpt2",
        "data.path=hf://datasets/org/data/train",
        "decoding.max_new_tokens=3",
    ]
    words += ["output.dir=run", "output.upload=s3://bucket/runs"]
    with DatasetHub({"train.jsonl": ROWS}, token="hf_secret_token") as hub, S3Store(gated_bytes=1) as store:
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(tmp_path),
            "HF_ENDPOINT": hub.address,
            "HF_TOKEN": "hf_secret_token",
            "AWS_ENDPOINT_URL": store.address,
            "AWS_ACCESS_KEY_ID": "AKIATEST",
            "AWS_SECRET_ACCESS_KEY": "secret_of_aws",
            "AWS_EC2_METADATA_DISABLED": "true",
        }
        store.gate = Event()
        command = [sys.executable, "-m", "mindbatch", *words]
        job = subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True)
        while not store.is_waiting.wait(0.05):
            assert job.poll() is None, job.communicate()[1]
        job.send_signal(signal.SIGKILL)
        job.wait()
        store.gate.set()
        manifest = json.loads((tmp_path / "run/manifest.json").read_bytes())
        assert (manifest["status"], manifest["upload"]["status"]) == ("complete", "pending")
        hub.commit({"train.jsonl": b'{"prompt": "other rows"}\n'})
        done = run(command, tmp_path, environment)
        assert done.returncode == 0, done.stderr
        assert "4 of 4 rows done (results.jsonl)" in done.stderr
        assert "run: uploaded to s3://bucket/runs, and compared" in done.stderr
        for name in ("results.jsonl", "errors.jsonl"):
            assert store.objects[f"runs/{name}"] == (tmp_path / "run" / name).read_bytes()
        requests = len(store.requests)
        again = run(command, tmp_path, environment)
        assert (again.returncode, len(store.requests)) == (0, requests)
        replayed = run([*command[:3], "replay", "run", "2"], tmp_path, environment)
        assert (replayed.returncode, replayed.stdout.splitlines()[-1]) == (0, "equal to the run")
    assert "secret" not in done.stderr + again.stderr + replayed.stderr
    assert "path: hf://datasets/org/data/train\n" in (tmp_path / "run/config.yaml").read_text()
    written = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert not [path for path in written if b"secret" in path.read_bytes()]


def test_plan_and_evaluate_read_addresses(tmp_path: Path) -> None:
    rows = b"".join(b'{"prompt": "%d + 1 =", "answer": "%d"}\n' % (number, number + 1) for number in range(4))
    words = ["model=tiny_gpt2", "data.path=hf://datasets/org/data/test.jsonl", "decoding.max_new_tokens=3"]
    with DatasetHub({"test.jsonl": rows}) as hub:
        environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "HF_ENDPOINT": hub.address}
        command = [sys.executable, "-m", "mindbatch"]
        planned = run([*command, "plan", *words], tmp_path, environment)
        assert planned.returncode == 0, planned.stderr
        assert planned.stdout.startswith("rows       4\n")
        words += ["metrics=[exact_match]", "output.dir=scores"]
        evaluated = run([*command, "evaluate", *words], tmp_path, environment)
        assert evaluated.returncode == 0, evaluated.stderr
        assert evaluated.stderr.count("fetching hf://datasets/org/data/test.jsonl") == 1
    assert json.loads((tmp_path / "scores/results.json").read_bytes())["questions"] == 4


def test_mistakes_are_told_together_and_before_anything_begins(tmp_path: Path) -> None:
    words = ["batch", "model=tiny_gpt2", "data.path=[s3://key:hidden@bucket/x.jsonl,ftp://host/x.csv]"]
    words += ["output.dir=s3://bucket/run", "output.upload=hf://datasets/org"]
    command = [sys.executable, "-m", "mindbatch", *words]
    done = run(command, tmp_path, {"PATH": os.environ["PATH"], "HOME": str(tmp_path)})
    assert done.returncode == 2
    assert "hidden" not in done.stderr
    for part in (
        "data.path=s3://***@bucket/x.jsonl: has a user or password in it",
        "data.path=ftp://host/x.csv: must be a local path, hf://datasets/ORG/NAME[@REVISION]/SPLIT, s3://",
        "output.dir=s3://bucket/run: a run and its ledger are in a local folder; give one, and output.upload",
        "output.upload=hf://datasets/org: must be hf://datasets/ORG/NAME",
    ):
        assert part in done.stderr
    assert not list(tmp_path.rglob("run*"))
