"""LLM: a model folder and its engine behind one Python object."""

from __future__ import annotations

import warnings
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from mindbatch.config.environment import end_as_scheduler, prepare_environment
from mindbatch.config.launch_schema import has_ranks
from mindbatch.config.llm_options import options_of, with_keywords
from mindbatch.engine.call_inputs import (
    Params,
    PromptInput,
    adapter_for_each,
    check_on_error,
    params_for_each,
    prompt_list,
)
from mindbatch.engine.calls import Call, EngineCalls, Inbox, Run, loading
from mindbatch.engine.engine import StepResult
from mindbatch.engine.request import Request, RequestOutput, StreamEvent, in_order, refuse_failed
from mindbatch.engine.streaming import Streamer, feed_streamer
from mindbatch.io.closing import Closing
from mindbatch.io.errors import ConfigError, MindBatchError, PromptError
from mindbatch.loading.build import LoadedEngine, Notice, load_engine
from mindbatch.loading.setup import prepare
from mindbatch.prompts.prompts import (
    NO_TOKENIZER,
    Prompt,
    PromptRows,
    read_prompts,
    refuse_chats,
    token_ids_of,
)

if TYPE_CHECKING:
    from mindbatch.config.model_task import ModelTaskConfig
    from mindbatch.decoding import DecodingParams
    from mindbatch.engine.settings import EngineSettings
    from mindbatch.engine.statistics import EngineStatistics
    from mindbatch.loading.providers import OpenedFolder
    from mindbatch.prompts.tokenizer import Tokenizer

CLOSED = "this LLM was closed"


class LLM(Closing):
    """Generates text for prompts with one model.

    Any number of threads may call it: their requests are computed together, and the results of a call do not
    depend on other calls. An unfinished call may be abandoned.

    Args:
        path: Hugging Face folder: config.json, safetensors, and a tokenizer unless prompts are token ids.
            "shipped:examples/tiny_gpt2" is the model that comes with MindBatch.
        options: the keys of `model`, `runtime` and `parallel` by their names, `type` as `model_type`; see
            `__init__`. Paths may be Path objects, and cache_memory a number of bytes.

    Raises:
        ConfigError: an option is wrong or does not fit the model or this machine.
        CheckpointError: the folder is damaged or does not hold a supported model.
        MindBatchError: a process of several could not be started, or has ended.
    """

    @with_keywords
    def __init__(self, path: str | Path | None = None, **options: Any) -> None:
        self._take(_loaded(options_of(path, options)))

    @classmethod
    def from_config(
        cls,
        config: ModelTaskConfig,
        notice: Notice = lambda text: None,
        logs: Path | None = None,
        opened: OpenedFolder | None = None,
    ) -> LLM:
        """Loads the model of a valid configuration, in this process or in rank processes.

        notice: as in `load_engine`. logs, opened: as in `load_replicas`.
        """
        return cls.over(_loaded(config, notice, logs, opened))

    @classmethod
    def over(cls, model: LoadedEngine) -> LLM:
        llm = object.__new__(cls)
        llm._take(model)
        return llm

    def _take(self, model: LoadedEngine) -> None:
        self._loaded: LoadedEngine | None = model
        self.calls = EngineCalls(model.engine)

    def close(self) -> None:
        """Ends running calls and the processes of the tokenizer and of the ranks, and drops the model.

        Later calls raise MindBatchError. MindSpore keeps the memory of a model that has run until the process
        ends.
        """
        self.calls.close(CLOSED)
        model, self._loaded = self._loaded, None
        if model is not None and model.tokenizer is not None:
            model.tokenizer.close()

    @property
    def _model(self) -> LoadedEngine:
        if self._loaded is None:
            raise MindBatchError(CLOSED)
        return self._loaded

    @property
    def tokenizer(self) -> Tokenizer | None:
        """The model's tokenizer, or None if the folder has none and prompts are token ids."""
        return self._model.tokenizer

    @property
    def required_tokenizer(self) -> Tokenizer:
        """The tokenizer.

        Raises:
            ConfigError: the model's folder has none.
        """
        if self.tokenizer is None:
            raise ConfigError(NO_TOKENIZER)
        return self.tokenizer

    def refuse_chats(self, requested_by: str) -> None:
        """Raises ConfigError if the model has no chat template; requested_by: the key that requests chats."""
        refuse_chats(self.tokenizer, requested_by)

    @property
    def settings(self) -> EngineSettings:
        """The limits of the engine."""
        return self._model.engine.settings

    @property
    def seq_length(self) -> int:
        """The maximum number of tokens of a prompt and its output together."""
        return self.settings.seq_length

    @property
    def max_sequence_tokens(self) -> int:
        """The maximum number of tokens of a sequence, by the model and by the cache."""
        return min(self.settings.seq_length, self.settings.num_blocks * self.settings.block_size)

    @property
    def continues_prompts(self) -> bool:
        """False if the model has an encoder, as its outputs do not contain the prompt."""
        return self.settings.decoder_start_id is None

    @property
    def kernels(self) -> str:
        """The kernels in use: the instruction sets of the C++ kernels, or the name of other kernels."""
        return self._model.kernels

    def take_notes(self) -> list[str]:
        """Returns and clears the notes for the user about the prompts since the last call."""
        note = None if self.tokenizer is None else self.tokenizer.take_note()
        return [] if note is None else [note]

    @property
    def statistics(self) -> EngineStatistics:
        """The statistics of the engine since the model was loaded."""
        return self._model.engine.statistics

    def generate(
        self,
        prompts: PromptInput | Sequence[PromptInput],
        params: Params = None,
        *,
        streamer: Streamer | None = None,
        on_error: Literal["raise", "record"] = "raise",
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        adapter: str | Sequence[str | None] | None = None,
        progress: bool = False,
        **decoding: Any,
    ) -> list[RequestOutput]:
        """Continues every prompt; results are in the order of the prompts.

        prompts: one or a list of strings, lists of token ids, or lists of chat messages.
        params: DecodingParams or dicts, one for all or a list of one for each; None is greedy decoding.
        streamer: an object with put() and end(), such as the TextStreamer and TextIteratorStreamer of
            MindFormers and of transformers; it is ended whatever happens.
        on_error: "record" returns a result with `error` set for a prompt that cannot be run or finished.
        tools, chat_template_kwargs: JSON objects, and further variables such as enable_thinking, for the chat
            template, as in transformers' apply_chat_template.
        adapter: names of lora_adapters, one for all or a list of one for each; None is lora_default.
        progress: shows on standard error how many prompts are done, and how fast.
        decoding: single decoding parameters by name, for all prompts; they override those of `params`.

        Raises:
            ConfigError: `prompts`, `params` or `adapter` is not what is described here.
            PromptError: on_error is "raise" and prompts cannot be run; the error names all of them, and no
                prompt is run. Or a prompt could not be finished, which is raised at the end.
        """
        with ExitStack() as stack:
            if streamer is not None:
                stack.callback(streamer.end)  # a thread may wait for it
            check_on_error(on_error)
            run = self.begin(
                prompts,
                params,
                tools=tools,
                chat_template_kwargs=chat_template_kwargs,
                adapter=adapter,
                **decoding,
            )
            stack.enter_context(closing(run))
            if run.refused and on_error == "raise":
                refuse_failed(run.refused)
            shown = streamer if self._model.streams else None
            items: Iterable[StreamEvent | RequestOutput] = run
            if progress and self._model.streams:
                from mindbatch.engine.progress import with_progress  # with rich, which few need

                counted = with_progress(run, len(run.requests), shown=True, alone=streamer is None)
                items = stack.enter_context(closing(counted))
            results = [*run.refused, *feed_streamer(shown, run.requests, items)]
        return in_order(results, on_error)

    def chat(
        self, messages: PromptInput | Sequence[PromptInput], params: Params = None, **options: Any
    ) -> list[RequestOutput]:
        """Continues one conversation, a list of messages, or each of several; see `generate`."""
        return self.generate(messages, params, **options)

    def stream(
        self,
        prompts: PromptInput | Sequence[PromptInput],
        params: Params = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        adapter: str | Sequence[str | None] | None = None,
        **decoding: Any,
    ) -> Iterator[StreamEvent]:
        """Yields the text and tokens that each step adds; `key` is the index of the prompt, from "0".

        The arguments are those of `generate`.

        Raises:
            ConfigError: `prompts` or `params` is not what `generate` describes.
            PromptError: prompts cannot be run; the error names all of them, and no prompt is run. Or a prompt
                cannot be finished.
        """
        run = self.begin(
            prompts,
            params,
            tools=tools,
            chat_template_kwargs=chat_template_kwargs,
            adapter=adapter,
            **decoding,
        )
        if run.refused:
            run.close()
            refuse_failed(run.refused)
        return self._streamed(run)

    def _streamed(self, run: Run) -> Iterator[StreamEvent]:
        for item in run:
            if isinstance(item, StreamEvent):
                yield item
            else:
                refuse_failed([item])

    def submit(self, rows: Iterable[tuple[Prompt, DecodingParams]], inbox: Inbox | None = None) -> Run:
        """Queues rows; they run while the result is iterated over. `inbox`: see `Call`."""
        return Run(self.calls, (self.request(row, params) for row, params in rows), inbox)

    def steps(self, rows: Iterable[tuple[Prompt, DecodingParams]]) -> Generator[StepResult, None, None]:
        """Runs any number of rows, which it reads as the engine needs them; yields the result of each step.

        A refused row is among the finished requests of a step, with its `error`. Unfinished rows are dropped
        if the caller stops early.
        """
        source, ahead = iter(rows), 3 * self.settings.batch_size
        with closing(self.call()) as call:
            while True:
                taken = islice(source, max(0, ahead - call.num_unfinished))
                refused = call.add([self.request(row, params) for row, params in taken])
                if call.num_unfinished:
                    result = call.next()
                    yield StepResult(result.events, refused + result.finished)
                elif refused:
                    yield StepResult([], refused)
                else:
                    return

    def call(self, inbox: Inbox | None = None, *, in_background: bool = False) -> Call:
        """Returns a `Call`, to which requests made by `request` are added while it runs."""
        return Call(self.calls, inbox, in_background=in_background)

    def request(self, row: Prompt, params: DecodingParams) -> Request | RequestOutput:
        """Returns the request of a row, or a result with an error if this model cannot run it."""
        adapter = self._model.adapters.default if row.adapter is None else row.adapter
        request = Request(row.key, (), params, row.text, adapter, row.source)
        try:
            token_ids = token_ids_of(row, self.tokenizer, self.seq_length)
            return replace(request, prompt_token_ids=tuple(token_ids))
        except PromptError as error:
            return request.failure(error)

    def begin(
        self,
        prompts: PromptInput | Sequence[PromptInput],
        params: Params = None,
        inbox: Inbox | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        adapter: str | Sequence[str | None] | None = None,
        **decoding: Any,
    ) -> Run:
        """Queues what `generate` takes, without running it; `inbox`: see `Call`.

        Raises:
            ConfigError: `prompts` or `params` is not what `generate` describes.
        """
        prompt_items = prompt_list(prompts)
        params_by_prompt = params_for_each(len(prompt_items), params, decoding)
        adapters = adapter_for_each(len(prompt_items), adapter)
        rows = PromptRows()
        if prompt_items:
            rows = read_prompts(prompts=prompt_items, tools=tools, chat_template_kwargs=chat_template_kwargs)
        named = [
            (replace(row, adapter=adapters[int(row.key)]), params_by_prompt[int(row.key)])
            for row in rows.prompts
        ]
        run = self.submit(named, inbox)
        run.refused += [RequestOutput.failed(row.key, row.error) for row in rows.errors]
        run.refused.sort(key=lambda failure: int(failure.key))
        for note in self.take_notes():
            warnings.warn(note, stacklevel=3)
        return run


def _loaded(
    config: ModelTaskConfig,
    notice: Notice = lambda text: None,
    logs: Path | None = None,
    opened: OpenedFolder | None = None,
) -> LoadedEngine:
    """Loads the model of a configuration. Arguments: see `LLM.from_config`."""
    end_as_scheduler()
    prepare_environment(config.runtime.verbose, config.runtime.num_threads)
    with loading():
        if not has_ranks(config.launch, config.parallel):
            return load_engine(prepare(config.model, config.runtime, lora=config.lora, opened=opened), notice)
        from mindbatch.replicas.load import load_replicas  # not needed where there are no ranks

        return load_replicas(config, notice, logs, opened)
