"""Computes the logits of a few fixed prompts, by which two copies of a model are compared."""

import numpy as np
import numpy.typing as npt

from mindbatch.architecture.architecture import Architecture
from mindbatch.backends import native
from mindbatch.checkpoint.folders.model_folder import StoredWeights
from mindbatch.decoding import DecodingParams
from mindbatch.decoding.registry import strategy_for
from mindbatch.decoding.row import Row
from mindbatch.engine.request import Request
from mindbatch.engine.sequence import Sequence, SequenceGroup
from mindbatch.engine.settings import EngineSettings
from mindbatch.engine.step import ScheduledTokens, Step
from mindbatch.model_spec.model_spec import ModelSpec
from mindbatch.parallel.topology import RankPart

NUM_PROMPTS = 4
TOKENS = 8
BLOCK_SIZE = 16

FloatArray = npt.NDArray[np.float32]

_STRIDE = 0.6180339887498949  # multiples of the golden ratio, less their whole part, lie evenly in 0 .. 1
_PARAMS = DecodingParams(max_new_tokens=1)


def fixed_prompts(vocab_size: int, max_positions: int) -> list[list[int]]:
    """Makes prompts with token ids from the whole vocabulary, the first and the last id among them."""
    length = min(TOKENS, max_positions)
    ids = [int(index * _STRIDE % 1 * vocab_size) for index in range(NUM_PROMPTS * length)]
    ids[-1] = vocab_size - 1
    return [ids[first : first + length] for first in range(0, len(ids), length)]


def first_logits(arch: Architecture, weights: StoredWeights) -> FloatArray:
    """Loads a model, or one rank of it, on the CPU; returns logits [tokens, vocabulary] of the fixed prompts.

    Raises:
        CheckpointError: the tensors do not fit, or are damaged.
        ConfigError: the kernels do not run here.
    """
    return prompt_logits(arch, weights, fixed_prompts(arch.vocab_size, arch.max_positions))


def prompt_logits(arch: Architecture, weights: StoredWeights, prompts: list[list[int]]) -> FloatArray:
    """Computes the logits of all positions of prompts in one step; see `first_logits`."""
    from mindbatch.engine.model_runner import ModelRunner
    from mindbatch.kernels.choice import choose_kernels
    from mindbatch.kernels.shapes import CacheGeometry

    kernels = choose_kernels("auto", "CPU")
    kernels.set_up()
    longest = max(map(len, prompts))
    blocks = -(-longest // BLOCK_SIZE)
    settings = EngineSettings(
        batch_size=len(prompts),
        seq_length=longest,
        block_size=BLOCK_SIZE,
        num_blocks=len(prompts) * blocks,
        max_batched_tokens=sum(map(len, prompts)),
        num_states=0 if arch.recurrence is None else len(prompts),
    )
    geometry = CacheGeometry(settings.num_blocks, settings.block_size, settings.num_states)
    spec = ModelSpec.of(arch, RankPart(weights.shard))
    runner = ModelRunner(native.load(spec, weights, kernels, geometry), settings)
    step = _step(prompts, blocks, has_states=settings.is_recurrent)
    return np.array(runner.run(step).logits(range(step.num_tokens)))


def _step(prompts: list[list[int]], blocks: int, *, has_states: bool) -> Step:
    """Schedules all prompts in one step, each with blocks of its own and, if needed, its own state slot."""
    scheduled = []
    for index, ids in enumerate(prompts):
        row = Row(_PARAMS, tuple(ids), [], (), index)
        table = [*range(index * blocks, (index + 1) * blocks)]
        sequence = Sequence(row, None, block_table=table, state_table=[index] * has_states)
        request = Request(str(index), tuple(ids), _PARAMS)
        group = SequenceGroup(request, strategy_for(_PARAMS), [sequence], len(ids) + 1)
        scheduled.append(ScheduledTokens(group, sequence, 0, len(ids), len(ids)))
    return Step(scheduled, num_tokens=sum(map(len, prompts)))
