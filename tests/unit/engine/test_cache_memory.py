"""A cache that no machine holds is refused before MindSpore is loaded, with what there is."""

import sys

import pytest

from mindbatch.config.model_schema import ModelConfig, RuntimeConfig
from mindbatch.config.paths import data_root
from mindbatch.io.errors import ConfigError
from mindbatch.loading.build import load_engine
from mindbatch.loading.setup import prepare


@pytest.mark.parametrize("asked", ["900TiB", "999999999TiB"])
def test_a_cache_beyond_all_memory_is_refused_by_name(asked: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mindspore", None)
    model = ModelConfig(checkpoint_name_or_path=str(data_root() / "examples/tiny_gpt2"), use_past=True)
    with pytest.raises(ConfigError) as caught:
        load_engine(prepare(model, RuntimeConfig(cache_memory=asked)))
    assert str(caught.value).startswith(f"runtime.cache_memory={asked}: more than the ")
    assert "GiB there are" in str(caught.value)
    assert str(caught.value).endswith(" bytes")
