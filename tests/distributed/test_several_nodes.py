"""One command on several nodes: copies that Slurm starts, and two hosts (network namespaces)."""

import os
import secrets
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from mindbatch import LLM
from processes import fake_srun

pytestmark = [pytest.mark.slow, pytest.mark.processes]

MINDBATCH = [sys.executable, "-m", "mindbatch"]
PROMPTS = ["9 + 8 =", "-x $(touch hacked); 'one' \"two\"\nthree"]
TASK = ("generate", "model=tiny_gpt2", "prompts_file=prompts.jsonl", "decoding.max_new_tokens=8")
SECONDS = 240


@pytest.fixture(scope="module")
def expected() -> list[str]:
    with LLM("shipped:examples/tiny_gpt2") as llm:
        outputs = llm.generate(PROMPTS, max_new_tokens=8)
    return [f"[{number}] {each.prompt}{each.outputs[0].text}" for number, each in enumerate(outputs)]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    import json

    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps(prompt) + "\n" for prompt in PROMPTS))
    return {**os.environ, "MINDBATCH_JOB_KEY": secrets.token_hex(32)}


def run(
    command: Sequence[str], environment: dict[str, str], folder: Path
) -> "subprocess.CompletedProcess[str]":
    pipes = {"capture_output": True, "text": True, "timeout": SECONDS}
    return subprocess.run(command, env=environment, cwd=folder, **pipes)  # type: ignore[call-overload,no-any-return]


def check(done: "subprocess.CompletedProcess[str]", expected: Sequence[str], folder: Path) -> None:
    assert done.returncode == 0, done.stderr
    assert done.stdout == "\n".join(expected) + "\n"
    assert not [*folder.rglob("hacked")]


def test_copies_that_srun_starts_are_one_job(
    environment: dict[str, str], expected: list[str], tmp_path: Path
) -> None:
    command = [*MINDBATCH, *TASK, "launch=srun", "parallel.data_parallel=2"]
    done = run([sys.executable, str(fake_srun.__file__), "2", *command], environment, tmp_path)
    check(done, expected, tmp_path)
    assert "mindbatch: node 1: ranks 1 to 1 for node 0 at localhost:2" in done.stderr


@pytest.fixture
def hosts() -> Iterator[list[list[str]]]:
    """Two network namespaces, joined by a veth pair: what to put before a command that shall run there."""
    names = [f"mindbatch{os.getpid()}{host}" for host in "ab"]
    addresses = ["10.77.0.1/24", "10.77.0.2/24"]
    made: list[str] = []
    try:
        for name in names:
            if _ip("netns", "add", name).returncode:
                pytest.skip("network namespaces cannot be made here")
            made.append(name)
        first, second = (f"mb{os.getpid() % 100_000}{host}" for host in "ab")
        pair = _ip("-n", names[0], "link", "add", first, "type", "veth", "peer", second, "netns", names[1])
        if pair.returncode:
            pytest.skip("veth pairs cannot be made here")
        for name, link, address in zip(names, (first, second), addresses, strict=True):
            for words in (("addr", "add", address, "dev", link), ("link", "set", link, "up")):
                _ip("-n", name, *words).check_returncode()
            _ip("-n", name, "link", "set", "lo", "up").check_returncode()
        yield [["ip", "netns", "exec", name] for name in names]
    finally:
        for name in made:
            _ip("netns", "del", name)


def _ip(*words: str) -> "subprocess.CompletedProcess[bytes]":
    try:
        return subprocess.run(["ip", *words], capture_output=True)
    except OSError:
        return subprocess.CompletedProcess(words, 1)


def test_two_hosts_share_the_rows(
    hosts: list[list[str]], environment: dict[str, str], expected: list[str], tmp_path: Path
) -> None:
    nodes = ("launch.local_worker_num=1", "launch.master_addr=10.77.0.1", "launch.master_port=8118")
    command = [*MINDBATCH, *TASK, "parallel.data_parallel=2", *nodes]
    other = subprocess.Popen(
        [*hosts[1], *command, "launch.node_rank=1"],
        env=environment,
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        done = run([*hosts[0], *command], environment, tmp_path)
        _, said = other.communicate(timeout=60)
    finally:
        other.kill()
    check(done, expected, tmp_path)
    assert (other.returncode, said) == (0, "mindbatch: node 1: ranks 1 to 1 for node 0 at 10.77.0.1:8118\n")


def test_a_replica_over_two_hosts_is_refused_on_a_cpu(environment: dict[str, str], tmp_path: Path) -> None:
    nodes = ("launch.local_worker_num=1", "launch.master_addr=127.0.0.1", "launch.master_port=48118")
    command = [*MINDBATCH, *TASK, "parallel.model_parallel=2", *nodes]
    done = run(command, environment, tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "on a CPU the ranks of a replica share the memory of one host" in done.stderr
