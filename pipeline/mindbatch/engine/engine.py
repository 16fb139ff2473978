"""The engine: drafts, schedules a step, runs it, lets the strategies choose, returns the new text."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Set
from typing import TYPE_CHECKING, NamedTuple, Protocol

from mindbatch.decoding import DecodingParams
from mindbatch.decoding.draws import row_hash
from mindbatch.decoding.registry import strategy_for
from mindbatch.decoding.row import NOT_FINITE, NotFiniteError, Row, row_error
from mindbatch.decoding.speculative import propose as look_up
from mindbatch.engine.adapter_slots import AdapterSlots, KnownAdapters
from mindbatch.engine.advance import advance, gather_prompt_outputs
from mindbatch.engine.output_text import Detokenizer, SequenceText, StopMatcher
from mindbatch.engine.request import Request, RequestOutput, StreamEvent
from mindbatch.engine.request_errors import request_errors
from mindbatch.engine.scheduler import Scheduler
from mindbatch.engine.sequence import PromptContext, Sequence, SequenceGroup, context_of
from mindbatch.engine.statistics import Counters, EngineStatistics
from mindbatch.io.errors import CheckpointError, MindBatchError, PromptError

if TYPE_CHECKING:
    from mindbatch.decoding.grammar_constraint import Constraint
    from mindbatch.engine.assistant import Assistant
    from mindbatch.engine.settings import EngineSettings
    from mindbatch.engine.step import Runner, Step, StepOutput

    MakeConstraint = Callable[[DecodingParams, tuple[int, ...]], Constraint | None]

MakeDetokenizer = Callable[[tuple[int, ...], bool], Detokenizer]


class StepResult(NamedTuple):
    """Result of one step: new text of running sequences, and the requests that are done."""

    events: list[StreamEvent]
    finished: list[RequestOutput]


class StepEngine(Protocol):
    """Runs requests step by step: an `Engine` of this process, or engines in other processes."""

    @property
    def settings(self) -> EngineSettings: ...

    @property
    def has_work(self) -> bool: ...

    @property
    def statistics(self) -> EngineStatistics: ...

    def add(self, request: Request) -> None:
        """Queues a request, which a later step begins."""

    def step(self) -> StepResult:
        """Runs a step; the result may be empty."""

    def abort(self, keys: Set[str] | None = None) -> None:
        """Drops the requests with these keys, or all."""

    def close(self) -> None:
        """Ends the processes of its own that it computes in, if it has any."""


class Engine:
    """Continuous batching over one runner.

    make_detokenizer: makes the detokenizer of an output from the prompt's token ids and whether special
        tokens are skipped; None without a tokenizer, and outputs then have token ids and no text.
    eos_token_ids: end-of-sequence ids of the model, for requests without their own; ids outside the
        vocabulary are ignored.
    make_constraint: makes the constraint of an output from its parameters and the prompt's token ids; None
        where no request has constraints.
    assistant: drafts tokens for speculative decoding, for requests of any adapter.
    adapters: the adapters that requests may name. slots: the slots of live adapters, which all engines of the
        runner share.
    cache_part: part of the cache that this engine uses, as in `Scheduler`.
    """

    def __init__(
        self,
        runner: Runner,
        settings: EngineSettings,
        make_detokenizer: MakeDetokenizer | None = None,
        eos_token_ids: tuple[int, ...] = (),
        make_constraint: MakeConstraint | None = None,
        assistant: Assistant | None = None,
        adapters: KnownAdapters | None = None,
        slots: AdapterSlots | None = None,
        cache_part: int = 0,
    ) -> None:
        self.settings = settings
        self.scheduler = Scheduler(settings, slots, cache_part)
        self._adapters = adapters or KnownAdapters()
        self._runner = runner
        self._make_detokenizer = make_detokenizer
        self._make_constraint = make_constraint
        self._eos_token_ids = tuple(token for token in eos_token_ids if 0 <= token < runner.vocab_size)
        self._assistant = assistant
        self._counters = Counters()
        self._is_sound = False

    @property
    def has_work(self) -> bool:
        return self.scheduler.has_work

    @property
    def statistics(self) -> EngineStatistics:
        return self._counters.statistics(self.scheduler)

    def add(self, request: Request) -> None:
        """Queues a request.

        Raises:
            PromptError: the prompt is empty, too long, or holds ids outside the vocabulary.
            CacheBudgetError: the request can never fit the cache.
        """
        try:
            group = self._group_of(request)
        except MindBatchError:
            raise
        except Exception as error:
            raise row_error(error, request.key) from error
        self.scheduler.add(group)

    def _group_of(self, request: Request) -> SequenceGroup:
        """Returns the group of a request before its first token; raises the errors of the request."""
        params, prompt = request.params, request.prompt_token_ids
        start_id = self.settings.decoder_start_id
        encoded, begun = ((), prompt) if start_id is None else (prompt, (start_id,))
        longest = params.max_total_tokens(len(begun), self.settings.seq_length - len(encoded))
        max_tokens = len(encoded) + longest
        self._check(request, max_tokens)
        eos = self._eos_token_ids if params.eos_token_id is None else params.eos_token_id
        row_number = row_hash(request.row_key or request.key)
        row = Row(params, begun, [], eos, row_number, key=request.key, max_tokens=longest)
        row.encoder_token_ids = encoded
        two = self.settings.two_positions
        context = None if two is None else context_of(request.key, prompt, two)
        _refuse_scores_within(request, context)
        row.constraint = None if self._make_constraint is None else self._make_constraint(params, begun)
        strategy, text = strategy_for(params), self._text_of(request, begun)
        # A search shows text of its own; its rows need theirs only to see a stop string.
        sequence = Sequence(row, text if params.stop or not strategy.searches else None, context=context)
        agreed = text.fork() if text is not None and strategy.searches else None
        state = strategy.begin(params)
        adapter = self._adapters.of(request.adapter)
        return SequenceGroup(request, strategy, [sequence], max_tokens, state, agreed, adapter=adapter)

    def step(self) -> StepResult:
        """Computes one step. Call while `has_work`."""
        step = self.begin()
        try:
            output = self._runner.run(step)
        except BaseException:
            self.scheduler.invalidate_adapter_slots(step)
            raise
        return self.finish(step, output)

    def begin(self) -> Step:
        """Drafts and schedules a step. Call `finish` with it before any other method but `add`."""
        self._draft()
        return self.scheduler.schedule()

    def finish(self, step: Step, output: StepOutput) -> StepResult:
        """Completes a step with the output of the model: strategies choose tokens, finished requests end."""
        self.scheduler.complete(step)
        self._counters.count(step.num_tokens, self.scheduler)
        if any(tokens.group.records_prompt for tokens in step.scheduled):
            gather_prompt_outputs(step, output)
        events = advance(step, output, self.scheduler, self._forget)
        self._refuse_unsound(step)
        self._counters.generated_tokens += sum(len(event.token_ids) for event in events)
        done = self.scheduler.forget_finished()
        self._forget(sequence for group in done for sequence in group.sequences)
        finished = [_result(group) for group in done]
        self._counters.count_outputs(output for result in finished for output in result.outputs)
        return StepResult(events, finished)

    def _refuse_unsound(self, step: Step) -> None:
        """Raises CheckpointError if no logits of the first step are finite, as the model itself is wrong."""
        rows = {id(tokens.group): tokens.group for tokens in step.scheduled if tokens.num_logits}
        if self._is_sound or not rows:
            return
        self._is_sound = not all(isinstance(group.error, NotFiniteError) for group in rows.values())
        if not self._is_sound and len(rows) > 1:
            raise CheckpointError(f"the logits of all {len(rows)} rows of the first step {NOT_FINITE}")

    def abort(self, keys: Set[str] | None = None) -> None:
        """Drops the requests with these keys, or all; their cached blocks can still be found."""
        self._forget(self.scheduler.abort(keys))

    def close(self) -> None:
        """Does nothing, as an engine has no processes of its own."""

    def _draft(self) -> None:
        """Drafts tokens for each sequence that needs a draft and has none.

        A draft depends on the row alone. It stays until it is verified, through a pre-emption too, and is
        one token shorter than what is left, as a token follows it.
        """
        undrafted: list[tuple[Row, int]] = []
        for group in self.scheduler.running:
            params = group.request.params
            if params.num_draft_tokens and group.has_output and group.is_decoding:
                for sequence in group.sequences:
                    count = min(params.num_draft_tokens, group.max_tokens - len(sequence) - 1)
                    if count > 0 and sequence.row.draft is None:
                        if not params.prompt_lookup_num_tokens:
                            undrafted.append((sequence.row, count))
                            continue
                        try:
                            sequence.row.draft = look_up(sequence.row, count)
                        except Exception as error:
                            group.fail(error)
        if undrafted:
            assert self._assistant is not None
            rows, counts = zip(*undrafted, strict=True)
            for row, drafted in zip(rows, self._assistant.propose(rows, counts), strict=True):
                row.draft = drafted

    def _check(self, request: Request, max_tokens: int) -> None:
        has_assistant = self._assistant is not None
        errors = request_errors(request, max_tokens, self.settings, self._runner.vocab_size, has_assistant)
        if error := next(errors, None) or self._adapters.error(request.adapter):
            raise PromptError(f"{request.key}: {error}")

    def _text_of(self, request: Request, begun: tuple[int, ...]) -> SequenceText | None:
        if self._make_detokenizer is None:
            return None
        params = request.params
        detokenizer = self._make_detokenizer(begun, params.skip_special_tokens)
        return SequenceText(detokenizer, StopMatcher(params.stop))

    def _forget(self, sequences: Iterable[Sequence]) -> None:
        if self._assistant is not None:
            for sequence in sequences:
                self._assistant.forget(sequence.row)


def _refuse_scores_within(request: Request, context: PromptContext | None) -> None:
    start = request.params.prompt_logprobs_start
    if context is not None and request.params.prompt_logprobs is not None and start <= context.length:
        raise PromptError(
            f"{request.key}: decoding.prompt_logprobs_start={start}: the prompt's first {context.length} "
            "tokens see those behind them, so that they have no probabilities, nor has the next; "
            f"allowed: from {context.length + 1} on, or no decoding.prompt_logprobs"
        )


def _result(group: SequenceGroup) -> RequestOutput:
    request = group.request
    if group.error is not None:
        return request.failure(group.error)
    return RequestOutput(
        key=request.key,
        prompt=request.prompt,
        prompt_token_ids=list(request.prompt_token_ids),
        outputs=sorted(group.finished, key=lambda output: output.index),
        prompt_logprobs=group.prompt_logprobs,
        num_cached_tokens=group.num_cached_tokens or 0,
        adapter=request.adapter,
        seconds=time.perf_counter() - group.started,
    )
