"""Loading small tokenizers through a model folder."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from small_tokenizers import CONTROL, tokenizer_of, write_folder
from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from mindbatch.prompts.chat import ChatLimits
from mindbatch.prompts.tokenizer import Tokenizer

Load = Callable[..., Tokenizer]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """Loads a backend through a model folder, so that nothing is tested that a user could not have."""

    def loaded(backend: Backend, limits: ChatLimits | None = None, **config: Any) -> Tokenizer:
        settings = {"tokenizer_class": "PreTrainedTokenizerFast", **config}
        return tokenizer_of(write_folder(tmp_path / "model", backend, settings), limits)

    return loaded


@pytest.fixture
def rstrip_special() -> list[AddedToken]:
    """Control tokens that swallow the white space after them, as Phi-3's do."""
    return [AddedToken(text, rstrip=True, normalized=False, special=True) for text in CONTROL]
