"""A model folder that configurations can point to."""

import json
from pathlib import Path

import pytest


@pytest.fixture
def model_folder(tmp_path: Path) -> Path:
    """A folder whose config.json says 32 heads; that is all that configurations look at."""
    folder = tmp_path / "llama-32-heads"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "num_attention_heads": 32}))
    return folder
