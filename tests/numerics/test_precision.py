"""What rounding the weights does to trained models: logits, greedy choices and perplexity beside float32."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from adapter_models import loaded, logits, logits_of
from lora_cases import prompts, write_base, write_case
from model_folders import STORIES
from numpy.typing import NDArray
from scipy.special import log_softmax

from mindbatch.backends import native
from mindbatch.checkpoint.folders.model_folder import ModelFolder
from mindbatch.engine.model_runner import ModelRunner
from mindbatch.engine.settings import EngineSettings
from mindbatch.kernels.choice import choose_kernels
from mindbatch.kernels.interface import Kernels
from mindbatch.kernels.native_library import find_library
from mindbatch.kernels.shapes import CacheGeometry
from mindbatch.model_spec.model_spec import ModelSpec
from mindbatch.model_spec.registry import describe
from mindbatch.parallel.context import initialise
from mindbatch.prompts.tokenizer import Tokenizer


class Kept(NamedTuple):
    """What weights and cache are kept in, as `choose_kernels` takes it."""

    dtype: str = "float32"
    quantization: str | None = None
    cache_dtype: str = "auto"

    def kernels(self) -> Kernels:
        return choose_kernels("native", "CPU", **self._asdict())


TINY = Path(__file__).parents[2] / "examples/tiny_gpt2"
WORDS = (
    "one, two, three, four, five, six, seven, eight, nine, ten, eleven, twelve, thirteen, fourteen, fifteen"
)
TEXTS = (
    f"An increasing sequence: {WORDS}, sixteen, seventeen, eighteen, nineteen, twenty, twenty-one,",
    f"A decreasing sequence: {', '.join(reversed(WORDS.split(', ')))}, zero.",
    "An increasing sequence: thirty-one, thirty-two, thirty-three, thirty-four, thirty-five, thirty-six,",
)
SETTINGS = EngineSettings(batch_size=8, seq_length=128, block_size=128, num_blocks=8, max_batched_tokens=1024)
ROUNDED: Mapping[str, Kept] = {
    "bfloat16": Kept("bfloat16"),
    "int8": Kept(quantization="int8"),
    "bfloat16 cache": Kept(cache_dtype="bfloat16"),
}

pytestmark = pytest.mark.skipif(find_library() is None, reason="the C++ kernels were not built")


class Limits(NamedTuple):
    """logit: the largest difference of one, as a part of the largest logit.
    otherwise: the part of tokens that greedy decoding chooses otherwise.
    perplexity: its relative change.
    """

    logit: float
    otherwise: float
    perplexity: float


LIMITS = {
    "bfloat16": Limits(0.02, 0.01, 0.005),
    "int8": Limits(0.06, 0.03, 0.01),
    "bfloat16 cache": Limits(0.02, 0.01, 0.005),
}


@dataclass(frozen=True)
class Scored:
    """Logits of every token of some texts, and the perplexity of the tokens that follow."""

    logits: NDArray[np.float32]
    perplexity: float


@lru_cache
def texts(folder: Path) -> list[list[int]]:
    tokenizer = Tokenizer.load(folder)
    if folder == TINY:
        return [list(tokenizer.encode(text)) for text in TEXTS]
    story = (folder / "published_greedy_256.txt").read_text(encoding="utf-8")
    ids = list(tokenizer.encode(story))
    return [ids[first : first + 128] for first in range(0, len(ids), 128)]


@lru_cache
def runner(folder: Path, kept: Kept, variant: str) -> ModelRunner:
    """variant: the instruction set in use; another one may pack weights otherwise."""
    initialise("CPU")
    kernels = kept.kernels()
    with ModelFolder(str(folder)) as model:
        geometry = CacheGeometry(SETTINGS.num_blocks, SETTINGS.block_size)
        return ModelRunner(
            native.load(ModelSpec.of(describe(model.config)), model, kernels, geometry), SETTINGS
        )


@lru_cache
def scored(folder: Path, kept: Kept, variant: str) -> Scored:
    rows = texts(folder)
    found = logits_of(runner(folder, kept, variant), [(row, 0) for row in rows])
    likelihoods = [
        log_softmax(each.astype(np.float64), axis=1)[np.arange(len(row) - 1), row[1:]]
        for each, row in zip(found, rows, strict=True)
    ]
    return Scored(np.concatenate(found), float(np.exp(-np.concatenate(likelihoods).mean())))


@pytest.fixture(params=["amx", "avx512_vnni", "portable"])
def variant(request: pytest.FixtureRequest) -> Iterator[str]:
    """An instruction set of each way of computing products and attention, while the test runs."""
    library = find_library()
    assert library is not None
    if request.param not in library.variants:
        pytest.skip(f"this machine or build lacks {request.param}")
    before = library.variant
    library.set_variant(request.param)
    yield request.param
    library.set_variant(before)


@pytest.fixture(
    params=[
        pytest.param(TINY, id="tiny_gpt2"),
        pytest.param(
            STORIES,
            id="stories260K",
            marks=pytest.mark.skipif(not STORIES.exists(), reason=f"needs {STORIES}, which is not shipped"),
        ),
    ]
)
def folder(request: pytest.FixtureRequest) -> Path:
    found: Path = request.param
    return found


@pytest.mark.parametrize("kind", ROUNDED)
def test_a_trained_model_keeps_its_accuracy(folder: Path, kind: str, variant: str) -> None:
    exact, rounded = scored(folder, Kept(), variant), scored(folder, ROUNDED[kind], variant)
    limits = LIMITS[kind]
    difference = np.abs(rounded.logits - exact.logits)
    assert 0 < difference.max() <= limits.logit * np.abs(exact.logits).max()
    otherwise = (rounded.logits.argmax(axis=1) != exact.logits.argmax(axis=1)).mean()
    assert otherwise <= limits.otherwise
    assert abs(rounded.perplexity / exact.perplexity - 1) <= limits.perplexity


@pytest.mark.parametrize("kind", ROUNDED)
def test_adapters_add_in_float32_to_the_rounded_product(kind: str, tmp_path: Path) -> None:
    """Rows without one have the bits of a model without any; others are near to those of float32."""
    base_folder = write_base(tmp_path / "base", "llama")
    adapters = {"tuned": write_case(tmp_path / "tuned", "llama_all_linear")}
    initialise("CPU")

    def found(kept: Kept, slot: int) -> NDArray[np.float32]:
        model = loaded(base_folder, kept.kernels(), adapters if slot >= 0 else None)
        if model.adapters is not None:
            model.adapters.load(1, "tuned")
        return np.concatenate(logits(model, [(row, max(slot, 0)) for row in prompts()]))

    rounded = ROUNDED[kind]
    np.testing.assert_array_equal(found(rounded, slot=0), found(rounded, slot=-1))
    adapted, exact, base = found(rounded, slot=1), found(Kept(), slot=1), found(rounded, slot=0)
    assert np.abs(adapted - exact).max() < np.abs(exact - base).max() / 5
