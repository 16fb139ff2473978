"""A model whose layers are divided over processes gives the tokens of one, whatever is asked of it."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from model_folders import descriptions, write_folder

from mindbatch.tasks.reshard.schema import ReshardConfig
from mindbatch.tasks.reshard.task import run
from mixed_requests import CACHED, PLAIN, SCHEMA, STORIES, TINY, compare, requests

pytestmark = [pytest.mark.slow, pytest.mark.processes]

MINDBATCH = Path(sys.executable).with_name("mindbatch")
CONSTRAINED: dict[str, dict[str, Any]] = {"schema": {"json_schema": SCHEMA}}


@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.on_demand)])
def test_a_mixture_with_an_assistant_and_a_schema(size: int, tmp_path: Path) -> None:
    (tmp_path / "whole").symlink_to(TINY)
    kinds = PLAIN | CACHED | CONSTRAINED | {"drafted": {"num_assistant_tokens": 3}}
    model = {"checkpoint_name_or_path": str(TINY), "assistant": str(TINY), "batch_size": 8}
    found = compare(tmp_path / "out", size, model, requests(kinds, 300), stages=2, device_map="auto")
    assert found["statistics"]["accepted_tokens"] > 0


def test_stages_and_slices_with_shared_heads_from_rank_folders(tmp_path: Path) -> None:
    write_folder(tmp_path / "whole", descriptions()["llama3"])
    config = ReshardConfig(source=str(tmp_path / "whole"))
    config.target.dir, config.target.model_parallel = str(tmp_path / "cut"), 2
    config.target.pipeline_stage = 2
    assert run(config) == 0
    model = {"checkpoint_name_or_path": str(tmp_path / "cut"), "batch_size": 4}
    compare(tmp_path / "out", 4, model, requests(PLAIN | CACHED, 90), stages=2)


@pytest.mark.on_demand
@pytest.mark.parametrize("case", ["gpt2", "llama3"])
def test_without_a_cache(case: str, tmp_path: Path) -> None:
    write_folder(tmp_path / "whole", descriptions()[case])
    model = {"checkpoint_name_or_path": str(tmp_path / "whole"), "use_past": False, "batch_size": 8}
    compare(tmp_path / "out", 2, model, requests(PLAIN, 90), stages=2, max_batched_tokens=400)


@pytest.mark.skipif(not STORIES.exists(), reason="needs a folder beside the project")
@pytest.mark.parametrize("size", [3, pytest.param(4, marks=pytest.mark.on_demand)])
def test_a_trained_llama(size: int, tmp_path: Path) -> None:
    """Three stages of one rank each, or two of two."""
    (tmp_path / "whole").symlink_to(STORIES)
    model = {"checkpoint_name_or_path": str(STORIES), "batch_size": 8}
    stages, device_map = (3, (1, 3, 1)) if size == 3 else (2, None)
    asked = requests(PLAIN | CACHED | CONSTRAINED, 300)
    compare(tmp_path / "out", size, model, asked, stages=stages, device_map=device_map)


def test_a_dataset_over_two_stages_has_the_bytes_of_one_process(tmp_path: Path) -> None:
    prompts = ["An increasing sequence: one,", "", "Two, three", *map(str, range(9))]
    (tmp_path / "rows.jsonl").write_text("\n".join(json.dumps({"prompt": prompt}) for prompt in prompts))
    settings = ["model=tiny_gpt2", "decoding.do_sample=true", "decoding.max_new_tokens=16", "progress=none"]
    for stages in (1, 2):
        given = [f"data.path={tmp_path}/rows.jsonl", f"output.dir={tmp_path}/run{stages}", *settings]
        command = [MINDBATCH, "batch", *given, f"parallel.pipeline_stage={stages}"]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=300)
        assert ended.returncode == 1, ended.stderr  # a row cannot be run
    for name in ("results.jsonl", "errors.jsonl"):
        assert (tmp_path / "run2" / name).read_bytes() == (tmp_path / "run1" / name).read_bytes()
