"""Types of tests/types: each file belongs to a type and is recorded, and what a type cannot be is refused."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from mindbatch.io.errors import CheckpointError
from mindbatch.model_spec.registry import MODEL_TYPES, describe
from small_configs import EXPERTS, LLAMA

FILES = sorted((Path(__file__).parents[2] / "types").glob("*.json"))
REFUSED = [
    (path.stem, message, settings)
    for path in FILES
    for message, settings in json.loads(path.read_text("utf-8"))["refused"].items()
]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_file_is_of_a_type_and_recorded(path: Path) -> None:
    assert path.stem in MODEL_TYPES
    assert path.with_suffix(".npz").exists()


@pytest.mark.parametrize(("model_type", "message", "settings"), REFUSED)
def test_what_a_type_cannot_be(model_type: str, message: str, settings: dict[str, Any]) -> None:
    base = LLAMA | {"model_type": model_type} | EXPERTS[model_type]
    assert describe(base).model_type == model_type
    with pytest.raises(CheckpointError, match=re.escape(message)):
        describe(base | settings)
