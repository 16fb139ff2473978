"""An LLM without a model, shared by the tests of what stands around it."""

import os
from pathlib import Path

import pytest

# Whoever imports protobuf first settles which implementation MindSpore finds; it can use this one only.
os.environ.setdefault("PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION", "python")

from mindbatch.llm import LLM
from mindbatch.prompts.tokenizer import Tokenizer
from shadow_llm import load_tokenizer, make_llm


@pytest.fixture(scope="session")
def shadow_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return load_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture
def shadow_llm(shadow_tokenizer: Tokenizer) -> LLM:
    return make_llm(shadow_tokenizer)


@pytest.fixture
def usable(model_folder: Path) -> tuple[str, str]:
    """Overrides that make a configuration without faults."""
    return f"model.checkpoint_name_or_path={model_folder}", "prompts=Hi"
