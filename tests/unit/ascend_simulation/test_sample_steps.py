"""Steps of every size: what the scheduler would make, of every kind."""

import itertools

from mindbatch.ascend_simulation.compilation import CHUNK, DECODE, PROMPT, SampleStep, sample_steps
from mindbatch.engine.batch import flatten
from mindbatch.engine.settings import EngineSettings

SETTINGS = EngineSettings(batch_size=3, seq_length=20, block_size=4, num_blocks=9, max_batched_tokens=32)


def of_kind(kind: str, settings: EngineSettings = SETTINGS) -> list[SampleStep]:
    return [sample for sample in sample_steps(settings) if sample.kind == kind]


def test_each_bucket_is_there_once() -> None:
    assert [sample.tokens for sample in of_kind(DECODE)] == [1, 2, 3]
    assert [sample.tokens for sample in of_kind(PROMPT)] == [2, 4, 8, 16, 24, 32]
    assert [sample.tokens for sample in of_kind(CHUNK)] == [2, 4, 8, 16, 24, 32]


def test_a_step_is_as_long_as_it_says_and_within_the_limits() -> None:
    for sample in sample_steps(SETTINGS):
        step = sample.step
        assert step.num_tokens == sample.tokens == sum(each.stop - each.start for each in step.scheduled)
        for each in step.scheduled:
            assert each.stop <= SETTINGS.seq_length
            assert len(each.sequence.block_table) == SETTINGS.blocks_for(each.stop)
            assert {*each.sequence.block_table} <= {*range(SETTINGS.num_blocks)}
        flatten(step, (sample.tokens, sample.tokens), SETTINGS.block_size, SETTINGS.blocks_per_sequence)


def test_kinds_differ_in_where_sequences_begin_and_what_is_asked_of_them() -> None:
    starts = {
        kind: {each.start for s in of_kind(kind) for each in s.step.scheduled} for kind in (PROMPT, CHUNK)
    }
    assert starts == {PROMPT: {0}, CHUNK: {1}}
    for sample in of_kind(DECODE):
        assert [each.num_logits for each in sample.step.scheduled] == [1] * sample.tokens
    asked = itertools.chain.from_iterable(sample.step.scheduled for sample in of_kind(PROMPT))
    assert not any(each.num_logits for each in asked)


def test_sequences_of_one_token_have_no_prompts() -> None:
    assert (
        of_kind(PROMPT, EngineSettings(1, 1, 4, 9, 8)) == of_kind(CHUNK, EngineSettings(1, 2, 4, 9, 8)) == []
    )
