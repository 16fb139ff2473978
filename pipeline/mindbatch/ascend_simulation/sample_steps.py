"""Steps of every size that an engine may ask its model for: all that has to be compiled."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mindbatch.decoding.params import DecodingParams
from mindbatch.decoding.registry import strategy_for
from mindbatch.decoding.row import Row
from mindbatch.engine.batch import buckets_up_to
from mindbatch.engine.prompt_context import PromptContext
from mindbatch.engine.request import Request
from mindbatch.engine.sequence import Sequence, SequenceGroup
from mindbatch.engine.settings import EngineSettings
from mindbatch.engine.step import ScheduledTokens, Step

DECODE, PROMPT, CHUNK = "decode", "prefill", "prefill after cached tokens"


@dataclass(frozen=True)
class SampleStep:
    """kind: DECODE (one token a sequence), PROMPT (from its first token on) or CHUNK (goes on with one)."""

    kind: str
    tokens: int
    step: Step


def sample_steps(settings: EngineSettings, *, few: bool = False) -> Iterator[SampleStep]:
    """A step for each bucket of decoding, of whole prompts and of prompts that go on.

    few: see `buckets_up_to`.
    """
    has_encoder = settings.decoder_start_id is not None
    decoded = (1, 2) if has_encoder else (0, 1)
    for tokens in buckets_up_to(settings.batch_size, few=few):
        yield SampleStep(DECODE, tokens, _step(settings, [decoded] * tokens, num_logits=1))
    for kind, first in ((PROMPT, 0), (CHUNK, 1))[: 1 if has_encoder else 2]:
        longest = min(settings.seq_length, settings.num_blocks * settings.block_size) - first
        for tokens in buckets_up_to(settings.max_batched_tokens, few=few):
            if tokens > 1 and longest > 1:  # a single token is decoded
                yield SampleStep(kind, tokens, _step(settings, _spans(tokens, first, longest)))


def _spans(tokens: int, first: int, longest: int) -> list[tuple[int, int]]:
    """One sequence, or more where the tokens are beyond the longest."""
    sizes = [longest] * (tokens // longest) + [tokens % longest] * (tokens % longest > 0)
    return [(first, first + size) for size in sizes]


def _step(settings: EngineSettings, spans: list[tuple[int, int]], num_logits: int = 0) -> Step:
    scheduled = []
    for number, (start, stop) in enumerate(spans):
        group = _group(stop, with_encoder=settings.decoder_start_id is not None)
        (sequence,) = group.sequences
        sequence.context = None if settings.two_positions is None else PromptContext(stop, 0)
        blocks = settings.blocks_for(stop)
        first = number * blocks
        sequence.block_table = [block % settings.num_blocks for block in range(first, first + blocks)]
        scheduled.append(ScheduledTokens(group, sequence, start, stop, num_logits))
    return Step(scheduled, num_tokens=sum(stop - start for start, stop in spans))


def _group(length: int, *, with_encoder: bool) -> SequenceGroup:
    """with_encoder: all tokens but the last are its input."""
    params, tokens = DecodingParams(), (0,) * length
    prompt, inputs = (tokens[-1:], tokens[:-1]) if with_encoder else (tokens, ())
    row = Row(params, prompt, [], (), row_hash=0, encoder_token_ids=inputs)
    return SequenceGroup(Request("", prompt, params), strategy_for(params), [Sequence(row, None)], length + 1)
