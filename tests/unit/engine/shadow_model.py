"""A runner without a model: its cache holds fingerprints of prefixes, so that wrong blocks are noticed."""

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mindbatch.decoding import DecodingParams
from mindbatch.engine.engine import Engine
from mindbatch.engine.model_runner import flatten
from mindbatch.engine.request import Request, RequestOutput, StreamEvent
from mindbatch.engine.settings import EngineSettings
from mindbatch.engine.step import ScheduledTokens, Step, StepOutput
from mindbatch.kernels.step import Batch

VOCABULARY = 12
HIDDEN_SIZE = 5
COPIES_AT_ONCE = 16  # as the real cache: a call reads all its sources, then writes


STRATEGIES: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampling": {"do_sample": True, "num_return_sequences": 4, "top_p": 0.9},
    "beam": {"num_beams": 4, "num_return_sequences": 2},
    "beam_sampling": {"num_beams": 3, "do_sample": True, "num_return_sequences": 2, "temperature": 0.8},
    "group_beam": {
        "num_beams": 4,
        "num_beam_groups": 2,
        "diversity_penalty": 0.7,
        "num_return_sequences": 3,
    },
    "contrastive": {"penalty_alpha": 0.6, "top_k": 4},
    "embedding": {"pooling": "last"},
    "sample_and_rank": {"do_sample": True, "best_of": 4, "num_return_sequences": 2},
    "lookup": {"prompt_lookup_num_tokens": 3, "max_matching_ngram_size": 1},
    "sampled_lookup": {"prompt_lookup_num_tokens": 2, "max_matching_ngram_size": 1, "do_sample": True},
}


def settings(**changes: int) -> EngineSettings:
    """An engine without any pressure, unless changed."""
    sizes = {"batch_size": 8, "seq_length": 40, "block_size": 4, "num_blocks": 400, "max_batched_tokens": 64}
    return EngineSettings(**(sizes | changes))


def fingerprint(previous: int, token: int) -> int:
    """The state after one more token; 0 is the state before the first."""
    return int.from_bytes(blake2b(f"{previous},{token}".encode(), digest_size=7).digest(), "little")


def start_of(adapter: str | None) -> int:
    """The state before the first token, another one with each adapter."""
    return 0 if adapter is None else int.from_bytes(blake2b(adapter.encode(), digest_size=7).digest(), "big")


def fingerprints(tokens: Iterable[int], adapter: str | None = None) -> list[int]:
    """The state after each token."""
    states = [start_of(adapter)]
    for token in tokens:
        states.append(fingerprint(states[-1], token))
    return states[1:]


@lru_cache(maxsize=100_000)
def logits_of(state: int) -> NDArray[np.float32]:
    """Logits [VOCABULARY] that follow a prefix."""
    return np.random.default_rng(state).standard_normal(VOCABULARY).astype(np.float32) * 2


@lru_cache(maxsize=100_000)
def hidden_of(state: int) -> NDArray[np.float32]:
    """The last hidden state [HIDDEN_SIZE] of a prefix."""
    return np.random.default_rng(state + 1).standard_normal(HIDDEN_SIZE).astype(np.float32)


def greedy_tokens(prompt: Sequence[int], count: int) -> list[int]:
    """What greedy decoding must give, without an engine."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(logits_of(fingerprints(tokens)[-1]).argmax()))
    return tokens[len(prompt) :]


class ShadowOutput(StepOutput):
    """Logits from the states that the step computed."""

    def __init__(self, states: list[int]) -> None:
        self.states = states

    def logits(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        return np.stack([logits_of(self.states[token]) for token in tokens])

    def hidden(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        return np.stack([hidden_of(self.states[token]) for token in tokens])


class ShadowRunner:
    """Computes each token's state from the state that the cache holds for its predecessor.

    On every step it checks that each token finds its own prefix, whole, through its block table; and where
    there are slots of states, that each sequence's holds what all tokens before the step made of it.
    """

    vocab_size = VOCABULARY

    def __init__(self, limits: EngineSettings) -> None:
        self.limits = limits
        self.cache = np.full((limits.num_blocks, limits.block_size), -1, np.int64)
        self.steps: list[list[tuple[str, int, int, bool]]] = []
        self.states = np.full(limits.num_states, -1, np.int64)
        self.adapters: dict[int, str] = {}
        self.num_adapter_loads = 0

    def run(self, step: Step) -> ShadowOutput:
        assert 0 < step.num_tokens <= self.limits.max_batched_tokens
        assert step.num_tokens == sum(tokens.stop - tokens.start for tokens in step.scheduled)
        self.steps.append(
            [(t.group.request.key, t.start, t.stop, bool(t.num_logits)) for t in step.scheduled]
        )
        self.adapters.update(step.adapter_loads)
        self.num_adapter_loads += len(step.adapter_loads)
        for first in range(0, len(step.copies), COPIES_AT_ONCE):
            some = step.copies[first : first + COPIES_AT_ONCE]
            sources, targets = (np.asarray(blocks) for blocks in zip(*some, strict=True))
            self.cache[targets] = self.cache[sources]
        for source, target in step.state_copies:
            self.states[target] = self.states[source]
        width, sizes = self.limits.blocks_per_sequence, (step.num_tokens, len(step.scheduled))
        batch = flatten(step, sizes, self.limits.block_size, width)
        if batch.states is not None:
            self._advance_states(step, batch.states.tolist())
        assert len(set(batch.slots.tolist())) == step.num_tokens, "two tokens of a step share a slot"
        states = self._write(batch, [start_of(self._adapter(tokens)) for tokens in step.scheduled])
        for row, tokens in enumerate(step.scheduled):
            self._check_prefix(batch.block_tables[row], tokens)
        return ShadowOutput(states)

    def _advance_states(self, step: Step, slots: list[int]) -> None:
        """Every sequence's state is that of the tokens before; behind the step, that of those that count."""
        end, changed = 0, set[int]()
        for tokens in step.scheduled:
            own = slots[end : end + tokens.stop - tokens.start]
            end += len(own)
            settled = [slot for slot in own if slot >= 0]
            assert settled == own[: len(settled)], "drafted tokens come last"
            assert len({*settled}) == 1
            assert not changed & {*settled}, "two sequences of a step share a state"
            changed.add(slot := settled[0])
            states = fingerprints(
                tokens.sequence.tokens(0, tokens.start + len(settled)), self._adapter(tokens)
            )
            if tokens.start:
                assert self.states[slot] == states[tokens.start - 1], "a state is not its sequence's"
            self.states[slot] = states[-1]

    def _adapter(self, tokens: ScheduledTokens) -> str | None:
        return self.adapters[tokens.adapter] if tokens.adapter else None

    def _write(self, batch: Batch, starts: list[int]) -> list[int]:
        states = []
        for token, position, slot, row in zip(
            batch.ids, batch.positions, batch.slots, batch.rows, strict=True
        ):
            previous = self._read(batch.block_tables[row], int(position) - 1) if position else starts[row]
            states.append(fingerprint(previous, int(token)))
            self.cache.flat[slot] = states[-1]
        return states

    def _read(self, table: NDArray[np.int32], position: int) -> int:
        size = self.limits.block_size
        return int(self.cache[table[position // size], position % size])

    def _check_prefix(self, table: NDArray[np.int32], tokens: ScheduledTokens) -> None:
        found = [self._read(table, position) for position in range(tokens.stop)]
        expected = fingerprints(tokens.sequence.tokens(0, tokens.stop), self._adapter(tokens))
        assert found == expected, "a prefix was overwritten"


class Letters:
    """A detokenizer: token 0 is "a", 1 is "b" and so on."""

    def __init__(self, prompt: tuple[int, ...] = (), skip_special_tokens: bool = True) -> None:
        self.prompt = prompt

    def push(self, token_id: int) -> str:
        return chr(ord("a") + token_id)

    def flush(self) -> str:
        return ""

    def fork(self) -> "Letters":
        return Letters(self.prompt)


def text_of(tokens: Iterable[int]) -> str:
    """What Letters makes of tokens."""
    return "".join(chr(ord("a") + token) for token in tokens)


def make_engine(limits: EngineSettings, eos: tuple[int, ...] = ()) -> Engine:
    """An engine over the shadow model, with text."""
    return Engine(ShadowRunner(limits), limits, Letters, eos)


def request(key: str, prompt: Iterable[int], **params: object) -> Request:
    """A request; keyword arguments are decoding parameters."""
    return Request(key, tuple(prompt), DecodingParams(**params))  # type: ignore[arg-type]


def drain(engine: Engine) -> tuple[dict[str, RequestOutput], list[StreamEvent]]:
    """Steps until nothing is left; results by key, events in order. All blocks and slots are free then."""
    results: dict[str, RequestOutput] = {}
    events: list[StreamEvent] = []
    while engine.has_work:
        step = engine.step()
        events += step.events
        results |= {output.key: output for output in step.finished}
        assert engine.scheduler.num_preemptions < 10_000, "pre-emption does not end"
    assert engine.scheduler.blocks.num_free == engine.settings.num_blocks
    assert engine.scheduler.states.num_free == engine.settings.num_states
    return results, events


def plain(output: RequestOutput) -> tuple[Any, ...]:
    """All of a result that must not depend on how the engine ran; the outputs come last."""
    outputs = [
        (o.index, o.text, o.token_ids, o.finish_reason, o.score, o.rank, o.cumulative_logprob, o.logprobs)
        for o in output.outputs
    ]
    return output.key, output.prompt_token_ids, output.prompt_logprobs, outputs


def all_plain(results: Mapping[str, RequestOutput]) -> dict[str, tuple[Any, ...]]:
    """Of all results by key."""
    return {key: plain(output) for key, output in results.items()}


def run_all(engine: Engine, requests: Iterable[Request]) -> dict[str, RequestOutput]:
    """Adds requests and runs them to the end."""
    for item in requests:
        engine.add(item)
    return drain(engine)[0]


def cached(engine: Engine, key: str, prompt: Sequence[int], **params: object) -> int:
    """Runs one greedy request; how many of its prompt's tokens were found."""
    output = run_all(engine, [request(key, prompt, max_new_tokens=3, **params)])[key]
    assert output.outputs[0].token_ids == greedy_tokens(prompt, 3)
    return output.num_cached_tokens
