"""The engine: schedule a step, run it, let the strategies choose, and hand out what has become text."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from mindbatch.decoding import Branch, Row, StopMatcher, Strategy, strategy_for
from mindbatch.decoding.philox import row_hash
from mindbatch.engine.prompt_scores import PromptScorer
from mindbatch.engine.request import FinishReason, Request, RequestOutput, StreamEvent
from mindbatch.engine.runner import Runner, StepOutput
from mindbatch.engine.scheduler import Scheduler, Step
from mindbatch.engine.sequence import Detokenizer, Sequence, SequenceGroup, SequenceText
from mindbatch.engine.settings import EngineSettings
from mindbatch.engine.statistics import Counters, EngineStatistics
from mindbatch.errors import PromptError

MakeDetokenizer = Callable[[tuple[int, ...], bool], Detokenizer]


class StepResult(NamedTuple):
    """What one step brought: new text of running sequences, and the requests that are done."""

    events: list[StreamEvent]
    finished: list[RequestOutput]


class Engine:
    """Continuous batching over one runner.

    make_detokenizer: (prompt token ids, skip special tokens) -> detokenizer of one output; None when there is
        no tokenizer, then outputs have token ids and no text.
    eos_token_ids: the model's own end-of-sequence ids, for requests that name none.
    """

    def __init__(
        self,
        runner: Runner,
        settings: EngineSettings,
        make_detokenizer: MakeDetokenizer | None = None,
        eos_token_ids: tuple[int, ...] = (),
    ) -> None:
        self.settings = settings
        self.scheduler = Scheduler(settings)
        self._runner = runner
        self._make_detokenizer = make_detokenizer
        self._eos_token_ids = eos_token_ids
        self._prompts = PromptScorer()
        self._counters = Counters()

    @property
    def has_work(self) -> bool:
        return self.scheduler.has_work

    @property
    def statistics(self) -> EngineStatistics:
        """What the engine has done since it was made, and its load now."""
        return self._counters.statistics(self.scheduler)

    def add(self, request: Request) -> None:
        """Queues a request.

        Raises:
            PromptError: the prompt is empty, too long, or holds ids outside the vocabulary.
            CacheBudgetError: the request can never fit the cache.
        """
        params, prompt = request.params, request.prompt_token_ids
        max_tokens = params.max_total_tokens(len(prompt), self.settings.seq_length)
        self._check(request, max_tokens)
        eos = self._eos_token_ids if params.eos_token_id is None else params.eos_token_id
        sequence = Sequence(Row(params, prompt, [], eos, row_hash(request.key)), self._text_of(request))
        group = SequenceGroup(request, strategy_for(params), [sequence], max_tokens)
        self.scheduler.add(group)

    def step(self) -> StepResult:
        """Computes one step. Call while `has_work`."""
        step = self.scheduler.schedule()
        output = self._runner.run(step)
        self.scheduler.complete(step)
        self._counters.count(step, self.scheduler)
        self._prompts.score(step, output)
        events = self._choose(step, output)
        self._counters.generated_tokens += len(events)
        finished = [_result(group) for group in self.scheduler.forget_finished()]
        return StepResult(events, finished)

    def abort(self) -> None:
        """Drops all requests; the engine can be used again, and what its cache holds is still found."""
        self.scheduler.abort()

    def _check(self, request: Request, max_tokens: int) -> None:
        prompt, key = request.prompt_token_ids, request.key
        if not prompt:
            raise PromptError(f"{key}: the prompt has no tokens; at least one is needed to continue from")
        if max_tokens <= len(prompt):
            raise PromptError(
                f"{key}: the prompt has {len(prompt)} tokens and prompt and output together may have "
                f"{max_tokens}; shorten it or raise model.seq_length (or decoding.max_length)"
            )
        for token in (*prompt, *(request.params.eos_token_id or ())):
            if not 0 <= token < self._runner.vocab_size:
                raise PromptError(
                    f"{key}: token id {token} is outside the vocabulary; allowed: 0 to "
                    f"{self._runner.vocab_size - 1}"
                )
        if request.adapter is not None:
            raise PromptError(f"{key}: adapter {request.adapter!r} is not loaded; only the base model is")

    def _text_of(self, request: Request) -> SequenceText | None:
        if self._make_detokenizer is None:
            return None
        params = request.params
        detokenizer = self._make_detokenizer(request.prompt_token_ids, params.skip_special_tokens)
        return SequenceText(detokenizer, StopMatcher(params.stop))

    def _choose(self, step: Step, output: StepOutput) -> list[StreamEvent]:
        """Lets each strategy advance its groups, all in one call."""
        by_strategy: dict[int, tuple[Strategy, dict[int, SequenceGroup], list[int]]] = {}
        end = 0
        for tokens in step.scheduled:
            end += tokens.stop - tokens.start
            if tokens.samples:
                strategy = tokens.group.strategy
                _, groups, places = by_strategy.setdefault(id(strategy), (strategy, {}, []))
                groups[id(tokens.group)] = tokens.group
                places.append(end - 1)
        events: list[StreamEvent] = []
        for strategy, groups, places in by_strategy.values():
            views = [group.view() for group in groups.values()]
            branches = strategy.advance(views, output.logits(places))
            for group, chosen in zip(groups.values(), branches, strict=True):
                events += self._grow(group, chosen)
        return events

    def _grow(self, group: SequenceGroup, branches: list[Branch]) -> list[StreamEvent]:
        """Appends, forks and drops the sequences of a group as its strategy decided."""
        parents = group.sequences
        heirs = {branch.parent: index for index, branch in reversed(list(enumerate(branches)))}
        # Forks are taken from the parents as they are before any of them gets its token.
        grown = [
            parents[branch.parent]
            if heirs[branch.parent] == index
            else self.scheduler.fork(parents[branch.parent])
            for index, branch in enumerate(branches)
        ]
        self.scheduler.release(parent for place, parent in enumerate(parents) if place not in heirs)
        events = [
            self._append(group, sequence, branch) for sequence, branch in zip(grown, branches, strict=True)
        ]
        group.sequences = [sequence for sequence in grown if sequence.finish_reason is None]
        return events

    def _append(self, group: SequenceGroup, sequence: Sequence, branch: Branch) -> StreamEvent:
        sequence.row.sample_index = branch.sample_index
        text = sequence.append(branch.token_id, branch.logprob, branch.top_logprobs)
        sequence.finish_reason = _finish_reason(sequence, group.max_tokens)
        if not self.settings.use_past:
            sequence.num_computed_tokens = 0
        if sequence.finish_reason is not None:
            if sequence.text is not None:
                text += sequence.text.flush()
                if sequence.text.stop.stopped:  # what was held back may hold a stop string
                    sequence.finish_reason = "stop"
            group.finished.append(sequence.output())
            self.scheduler.release([sequence])
        return StreamEvent(
            group.request.key, branch.sample_index, text, (branch.token_id,), sequence.finish_reason
        )


def _finish_reason(sequence: Sequence, max_tokens: int) -> FinishReason | None:
    stopped = sequence.text is not None and sequence.text.stop.stopped
    if stopped or sequence.row.output_token_ids[-1] in sequence.row.eos_token_ids:
        return "stop"
    return "length" if len(sequence) >= max_tokens else None


def _result(group: SequenceGroup) -> RequestOutput:
    request = group.request
    return RequestOutput(
        key=request.key,
        prompt=request.prompt,
        prompt_token_ids=list(request.prompt_token_ids),
        outputs=sorted(group.finished, key=lambda output: output.index),
        prompt_logprobs=group.prompt_logprobs,
        num_cached_tokens=group.num_cached_tokens or 0,
        seconds=time.perf_counter() - group.started,
    )
