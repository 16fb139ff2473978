"""Runs a tiny model on prompts, chunks and single tokens, like the engine's steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ascend_check.models import (
    FloatArray,
    RandomWeights,
    architecture,
    family_of,
    mindformers_spec,
    weights_of,
)
from mindbatch.architecture.tensor_spec import source_shapes
from mindbatch.backends import native
from mindbatch.backends.model import Model
from mindbatch.decoding import DecodingParams
from mindbatch.decoding.registry import strategy_for
from mindbatch.decoding.row import Row
from mindbatch.engine.model_runner import ModelRunner, wanted_tokens
from mindbatch.engine.request import Request
from mindbatch.engine.sequence import PromptContext, SequenceGroup
from mindbatch.engine.sequence import Sequence as TokenSequence
from mindbatch.engine.settings import EngineSettings
from mindbatch.engine.step import ScheduledTokens, Step
from mindbatch.kernels.interface import Kernels
from mindbatch.kernels.shapes import CacheGeometry
from mindbatch.kernels.step import Span
from mindbatch.model_spec.model_spec import ModelSpec

SETTINGS = EngineSettings(batch_size=8, seq_length=64, block_size=16, num_blocks=8, max_batched_tokens=32)
GEOMETRY = CacheGeometry(SETTINGS.num_blocks, SETTINGS.block_size)
PROMPTS = (tuple((7 * i + 3) % 96 for i in range(22)), tuple((11 * i + 5) % 96 for i in range(7)))
TABLES = ((4, 2), (6,))
# For each prompt the first position of a step and the one after its last; the steps cover the prompts.
STEPS: tuple[tuple[Span, ...], ...] = (
    ((0, 17), (0, 4)),
    ((17, 20), (4, 5)),
    ((20, 21), (5, 6)),
    ((21, 22), (6, 7)),
)
_PARAMS = DecodingParams(max_new_tokens=1)


def step_of(spans: Sequence[Span], *, with_contexts: bool = False, with_encoder: bool = False) -> Step:
    """Makes the step of the two prompts' tokens in these spans, with logits of all tokens.

    with_contexts: what the first step has of a prompt is its context. with_encoder: all that but the last
    token is the encoder's input, of which there are no logits.
    """
    scheduled = []
    for number, (prompt, table, (start, stop)) in enumerate(zip(PROMPTS, TABLES, spans, strict=True)):
        inputs = STEPS[0][number][1] - 1 if with_encoder else 0
        row = Row(_PARAMS, prompt[inputs:], [], (), number, encoder_token_ids=prompt[:inputs])
        sequence = TokenSequence(row, None, block_table=list(table))
        if with_contexts:
            sequence.context = PromptContext(STEPS[0][number][1], mask=2)
        group = SequenceGroup(Request(str(number), prompt, _PARAMS), strategy_for(_PARAMS), [sequence], 64)
        scheduled.append(ScheduledTokens(group, sequence, start, stop, stop - max(start, inputs)))
    return Step(scheduled, num_tokens=sum(stop - start for start, stop in spans))


def logits(name: str, kernels: Kernels) -> FloatArray:
    """Computes logits [tokens, vocabulary] of all tokens of STEPS with one cache. name: one of NAMES.

    Of a model with an encoder, only of the decoder's tokens.
    """
    family = family_of(name)
    model = _native(name, kernels) if family is None else _mindformers(family, kernels)
    arch = None if family is not None else architecture(name)
    two_positions, encoder = (arch.two_positions, arch.encoder) if arch else (None, None)
    start_id = None if encoder is None else encoder.start_id
    settings = replace(SETTINGS, two_positions=two_positions, decoder_start_id=start_id)
    runner = ModelRunner(model, settings)
    kinds = {"with_contexts": two_positions is not None, "with_encoder": encoder is not None}
    steps = [step_of(spans, **kinds) for spans in STEPS]
    return np.concatenate([runner.run(step).logits(wanted_tokens(step).tolist()) for step in steps])


def _native(model_type: str, kernels: Kernels) -> Model:
    arch = architecture(model_type)
    return native.load(ModelSpec.of(arch), weights_of(arch), kernels, GEOMETRY)


def _mindformers(family: str, kernels: Kernels) -> Model:
    from mindbatch.backends.mindformers.graph_kernels import compiled
    from mindbatch.backends.mindformers.network import assemble, build_network
    from mindbatch.backends.mindformers.weights import load_weights

    spec, kernels = mindformers_spec(family), compiled(kernels)
    network, arch = build_network(spec, kernels), spec.architecture
    load_weights(network, arch, RandomWeights(family, source_shapes(spec.parameters)), kernels)
    return assemble(network, arch, kernels, GEOMETRY)
