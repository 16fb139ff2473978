"""Embeddings are the states that logits are made of, whatever runs beside them."""

from pathlib import Path

import numpy as np
import pytest

from mindbatch import LLM, ConfigError, DecodingParams
from small_gpt2 import write_small_gpt2


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small_gpt2(tmp_path_factory.mktemp("model"))


def test_the_last_state_points_where_the_logits_do(folder: Path) -> None:
    """GPT-2's logits are products of its last state with the tokens' embeddings: up to the state's length and
    what makes them log-probabilities, they are products with the vector."""
    import safetensors.numpy

    with LLM(folder) as llm:
        (embedded,) = llm.generate([[5, 6, 7, 8]], pooling="last")
        (continued,) = llm.generate([[5, 6, 7, 8]], max_new_tokens=1, logprobs=20)
    tokens = safetensors.numpy.load_file(folder / "model.safetensors")["transformer.wte.weight"]
    vector = np.asarray(embedded.outputs[0].embedding)
    assert np.linalg.norm(vector) == pytest.approx(1, abs=1e-6)
    assert embedded.outputs[0].logprobs is None
    assert continued.outputs[0].logprobs is not None
    likely = continued.outputs[0].logprobs[0]
    products = tokens[[*likely]] @ vector
    length, shift = np.polyfit(products, [*likely.values()], 1)
    assert length > 0
    np.testing.assert_allclose(length * products + shift, [*likely.values()], atol=1e-4)


def test_an_embedding_has_the_same_bits_alone_and_in_a_batch(folder: Path) -> None:
    prompts = [[5 + i, 6, 7, 8][: 1 + i % 4] for i in range(20)]
    texts = DecodingParams(max_new_tokens=9)
    with LLM(folder, batch_size=8, max_batched_tokens=16) as llm:
        for pooling in ("last", "mean"):
            params = DecodingParams(pooling=pooling)
            together = llm.generate([*prompts, *prompts], [*[params] * 20, *[texts] * 20])
            alone = [llm.generate([prompt], params)[0] for prompt in prompts]
            for one, other in zip(alone, together, strict=False):
                assert one.outputs[0].embedding == other.outputs[0].embedding
        one_token = [llm.generate([[9]], pooling=pooling)[0].outputs[0] for pooling in ("last", "mean")]
    assert one_token[0].embedding == one_token[1].embedding
    assert (one_token[0].text, one_token[0].token_ids, one_token[0].finish_reason) == ("", [], "stop")


def test_an_embedding_is_no_text() -> None:
    with pytest.raises(ConfigError, match="embedding does not sample"):
        DecodingParams(pooling="mean", do_sample=True)
    with pytest.raises(ConfigError, match="embedding and beam search are two strategies"):
        DecodingParams(pooling="mean", num_beams=2)
    with pytest.raises(ConfigError, match="dimensions=3 has no effect"):
        DecodingParams(dimensions=3)
    with pytest.raises(
        ConfigError, match="pooling='first': must be one of last, mean, cls, max, weightedmean, "
    ):
        DecodingParams(pooling="first")
