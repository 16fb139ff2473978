"""A trained Llama tells its published story to the letter."""

from pathlib import Path

import pytest

from mindbatch import LLM, DecodingParams

FOLDER = Path(__file__).parents[3] / "shared/data/stories260K"

pytestmark = pytest.mark.skipif(
    not (FOLDER / "model.safetensors").exists(), reason=f"needs the model in {FOLDER}, which is not shipped"
)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"block_size": 64, "batch_size": 1}])
def test_published_greedy_output(options: dict[str, int]) -> None:
    published = (FOLDER / "published_greedy_256.txt").read_text(encoding="utf-8").removesuffix("\n")
    output = LLM(FOLDER, cache_memory="16MiB", **options).generate(
        [[1]], DecodingParams(max_new_tokens=256, eos_token_id=())
    )
    text = output[0].outputs[0].text
    assert text == published
