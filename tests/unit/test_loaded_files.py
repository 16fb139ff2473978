"""How much of the package a plain generation reads: what a job does not use, it does not import."""

import subprocess
import sys

GENERATE = """
import sys
from mindbatch.cli import main
code = main(["generate", "model=tiny_gpt2", "prompts=Hi", "decoding.max_new_tokens=1", "output.format=json"])
names = [name for name, module in sys.modules.items() if name.startswith("mindbatch") and module.__file__]
print(code, len(names), *sorted(names), file=sys.stderr)
"""
MOST = 200
UNUSED = (
    "checkpoint.lora",
    "checkpoint.quantised",
    "checkpoint.names",
    "decoding.beam_search",
    "launch",
    "replicas",
)


def test_a_plain_generation_reads_no_more_files_than_it_uses() -> None:
    done = subprocess.run([sys.executable, "-I", "-c", GENERATE], capture_output=True, text=True, check=True)
    code, count, *names = done.stderr.split()
    assert code == "0", done.stderr
    assert int(count) <= MOST
    assert [
        name for name in names if name.startswith(tuple(f"mindbatch.{unused}" for unused in UNUSED))
    ] == []
