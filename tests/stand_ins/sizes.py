"""The spec of a model whose sizes are what a test says, whatever its architecture."""

from dataclasses import dataclass

from mindbatch.model_spec.model_spec import ModelSpec
from mindbatch.model_spec.registry import describe
from mindbatch.parallel.topology import WHOLE, Stage

_GPT2 = {"model_type": "gpt2", "vocab_size": 340, "n_positions": 64, "n_embd": 32, "n_layer": 2, "n_head": 2}


@dataclass(frozen=True)
class Sizes(ModelSpec):
    """See `sizes`."""

    num_parameters: int = 500
    cached_numbers: int = 2 * 2 * 32
    rank_parameters: tuple[int, ...] = (500,)
    expert_numbers: int = 0


def sizes(rank_parameters: tuple[int, ...], cached_numbers: int = 2 * 2 * 32) -> Sizes:
    """Of a rank of each stage, and of a token in the cache."""
    arch, count = describe(_GPT2), len(rank_parameters)
    stages = tuple(Stage(range(1), index, count) for index in range(count))
    return Sizes(arch, WHOLE, stages[0], stages, sum(rank_parameters), cached_numbers, rank_parameters)
