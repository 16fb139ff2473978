"""MindBatchLM: the model class of lm-evaluation-harness over an `LLM`."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import cached_property
from hashlib import sha256
from typing import Any

from lm_eval.api.model import TemplateLM
from lm_eval.models.utils import normalize_gen_kwargs
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from tqdm import tqdm

from mindbatch.decoding import DecodingParams
from mindbatch.decoding.token_kinds import RANDOM
from mindbatch.engine.request import RequestOutput
from mindbatch.io.amounts import DAY_RULE, is_day, today
from mindbatch.io.errors import ConfigError, PromptError
from mindbatch.llm import LLM
from mindbatch.prompts.prompts import Prompt

logger = logging.getLogger(__name__)

DEFAULT_MAX_TOKENS = 256
"""Default for the most tokens of an output, as for the harness's own models."""
CLOCK = "strftime_now"
"""Function that a chat template calls to write a date."""
PEFT = "peft"
DEVICES = (None, "cpu", "cuda:0")
"""Devices that are accepted; the harness passes the last one by default."""

Scored = tuple[float, bool]
"""A log-probability (nats), and whether each of its tokens is the likeliest."""


TokenRequest = tuple[list[int], DecodingParams]
"""Tokens of a request to the engine, and its decoding parameters."""


class MindBatchLM(TemplateLM):  # type: ignore[misc]
    """Answers the requests of lm-evaluation-harness with an `LLM`, all of a kind in one continuous batch.

        lm_eval.simple_evaluate(MindBatchLM("path/to/model", model_parallel=2), tasks=["mine"])
        python -m mindbatch.lm_eval --model mindbatch --model_args pretrained=path/to/model --tasks mine

    Scores do not depend on the batch size.

    Args:
        pretrained: the folder of the model; or `llm`, one that is loaded, which its owner closes.
        peft: the folder of a LoRA adapter.
        adapter: with `llm`, the name of one of its adapters; None is its default.
        max_length: most tokens that the model sees of a request; None: as many as it can score.
        batch_size: most sequences of a step; "auto", and the 1 that the harness passes by default, are that
            of `LLM`.
        date: what the clock of a chat template says, as YYYY-MM-DD; None: the day of its creation.
        device, max_batch_size: settings of torch; use `device_target` and `batch_size` instead. Only
            the harness's defaults are accepted.
        options: the keywords of `LLM`.

    Raises:
        ConfigError, CheckpointError: as from `LLM`.
    """

    def __init__(
        self,
        pretrained: str | None = None,
        *,
        llm: LLM | None = None,
        peft: str | None = None,
        adapter: str | None = None,
        max_length: int | None = None,
        batch_size: int | str = "auto",
        date: str | None = None,
        device: str | None = None,
        max_batch_size: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        if device not in DEVICES:
            raise ConfigError(
                f"device={device!r}: give device_target=CPU or Ascend among the model's arguments"
            )
        if max_batch_size is not None:
            raise ConfigError(f"max_batch_size={max_batch_size}: give batch_size")
        if (pretrained is None) == (llm is None):
            raise ConfigError(
                "pretrained: must be given, the folder of a model, or else llm, one that is loaded"
            )
        if llm is None:
            assert pretrained is not None
            if peft is not None:
                options |= {"lora_adapters": {PEFT: peft}, "lora_default": PEFT}
            llm = LLM(pretrained, **_batch_size(batch_size), **options)
        if date is not None and not is_day(date):
            raise ConfigError(f"date={date!r}: {DAY_RULE}")
        self._llm, self._adapter = llm, adapter
        self._date = date or today()
        self._tokenizer = llm.required_tokenizer
        # One more is generated, which a request to score anything needs, and the last of all is not seen.
        max_tokens = llm.seq_length - 2
        if max_length is not None and not 0 < max_length <= max_tokens:
            raise ConfigError(f"max_length={max_length}: allowed: 1 to {max_tokens}")
        self.max_length: int = max_length or max_tokens

    @property
    def eot_token_id(self) -> int:
        if not self._tokenizer.eos_token_ids:
            raise ConfigError("the tokenizer names no token that ends a text; the harness needs one")
        return self._tokenizer.eos_token_ids[0]

    @property
    def prefix_token_id(self) -> int:
        """Token id that stands before a text that nothing precedes."""
        begin = self._tokenizer.bos_token_id
        return self.eot_token_id if begin is None else begin

    @property
    def tokenizer_name(self) -> str:
        """Tells the texts of chats apart in the harness's own cache of requests, by template and date."""
        template = self._tokenizer.chat_template or ""
        date = self._date if CLOCK in template else ""
        return sha256(f"{template}{date}".encode()).hexdigest()

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        return self._tokenizer.chat_template if chat_template else None

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        """Renders a chat as text; without the generation prompt, up to the end of its last message."""
        text = self._tokenizer.chat_text(
            chat_history, add_generation_prompt=add_generation_prompt, date=self._date
        )
        if add_generation_prompt:
            return text
        last = chat_history[-1]["content"].strip()
        if last not in text:
            raise PromptError("chat template: it changes the last message, which cannot be continued")
        return text[: text.rindex(last) + len(last)]

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **kwargs: Any) -> list[int]:
        """Token ids. Special tokens in the text are tokens: in a rendered chat they are the template's."""
        begin = self._tokenizer.decode([self.prefix_token_id], skip_special_tokens=False)
        end = self._tokenizer.decode(self._tokenizer.output_start, skip_special_tokens=False)
        has_begun = string.endswith(end) if end else bool(begin) and string.startswith(begin)
        added = not has_begun if add_special_tokens is None else add_special_tokens
        return self._tokenizer.encode(string, add_special_tokens=added, allow_special=True)

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        """Log-probabilities of whole texts, long ones in windows of which each token is scored once."""
        windows = [[*self._windows(text)] for (text,) in (request.args for request in requests)]
        rows = [(None, *window) for text_windows in windows for window in text_windows]
        scored = iter(self._loglikelihood_tokens(rows, disable_tqdm=disable_tqdm))
        sums = [sum(next(scored)[0] for _ in text_windows) for text_windows in windows]
        for request, total in zip(requests, sums, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, total)
        return sums

    def _encode_pair(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        """Encodes a pair of texts; white space between them belongs to the continuation.

        Behind what an output follows it is encoded by itself.
        """
        if not self._tokenizer.output_start:
            pair: tuple[list[int], list[int]] = super()._encode_pair(context, continuation)
            return pair
        bare = context.rstrip()
        added = self.tok_encode(context[len(bare) :] + continuation, add_special_tokens=False)
        return self.tok_encode(bare), added

    def _behind_start(self, context: list[int], continuation: list[int]) -> tuple[list[int], list[int]]:
        """Puts `output_start` before a text that has no context or is a window."""
        start = [*self._tokenizer.output_start]
        if not start or context[-len(start) :] == start:
            return context, continuation
        if context != [self.prefix_token_id]:
            return [*start, *context], continuation
        whole = continuation[-len(start) :] == start  # the harness encodes it as a text of its own
        return start, continuation[: -len(start)] if whole else continuation

    def _windows(self, text: str) -> Iterator[tuple[list[int], list[int]]]:
        start = self._tokenizer.output_start
        windows = get_rolling_token_windows(
            token_list=self.tok_encode(text, add_special_tokens=False if start else None),
            prefix_token=self.prefix_token_id,
            max_seq_len=self.max_length - len(start),
            context_len=1,
        )
        yield from map(make_disjoint_window, windows)

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[Any, list[int], list[int]]], disable_tqdm: bool = False, **kwargs: Any
    ) -> list[Scored]:
        """Scores each continuation after its context, of which the beginning is left out if both are too long
        for the model.

        Raises:
            PromptError: a continuation alone is too long.
        """
        requests = [(request, *self._behind_start(*pair)) for request, *pair in requests]
        max_tokens = self.max_length + 1  # the last one is scored, not seen
        rows, cut = [], 0
        for _, context, continuation in requests:
            if len(continuation) >= max_tokens:
                raise PromptError(
                    f"a continuation has {len(continuation)} tokens; at most {max_tokens - 1} can be scored"
                )
            cut += len(context) + len(continuation) > max_tokens
            tokens = [*context, *continuation][-max_tokens:]
            start = min(len(tokens) - len(continuation), len(tokens) - 1)
            scores = DecodingParams(max_new_tokens=1, prompt_logprobs=1, prompt_logprobs_start=start)
            rows.append((tokens, scores))
        _warn_of_cut(cut, max_tokens)
        outputs = self._run(rows, "loglikelihood", disable_tqdm)
        scores_of_requests = []
        for (request, _, continuation), output in zip(requests, outputs, strict=True):
            scores_of_requests.append(_scored(continuation, output))
            if request is not None:
                self.cache_hook.add_partial("loglikelihood", request, scores_of_requests[-1])
        return scores_of_requests

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """Continues each text until one of its stop texts, which are cut off.

        As from the harness's `hf` an output is the text of its tokens alone, without the space that many
        tokenizers leave out at the beginning of a text.

        Raises:
            ConfigError: generation arguments that are no decoding parameters, or have no effect.
        """
        rows, stops, cut = [], [], 0
        for context, task_arguments in (request.args for request in requests):
            params = _decoding(task_arguments)
            stops.append(params.stop)
            if self._drops_first_space:  # the engine sees it, so a stop text that it completes is not one yet
                params = replace(params, stop=tuple(text for text in params.stop if not text.startswith(" ")))
            max_prompt = self.max_length - (params.max_new_tokens or 0)
            if max_prompt <= 0:
                raise ConfigError(
                    f"max_gen_toks={params.max_new_tokens}: must be below the {self.max_length} tokens that "
                    "the model takes; give generation_kwargs a smaller one"
                )
            tokens = self.tok_encode(context)
            cut += len(tokens) > max_prompt
            rows.append((tokens[-max_prompt:], params))
        _warn_of_cut(cut, self.max_length)
        texts = []
        for output, stop_texts in zip(self._run(rows, "generate_until", disable_tqdm), stops, strict=True):
            text = self._tokenizer.decode(output.outputs[0].token_ids)
            ends = [end for stop in stop_texts if (end := text.find(stop)) >= 0]
            texts.append(text[: min(ends, default=None)])
        for request, text in zip(requests, texts, strict=True):
            self.cache_hook.add_partial("generate_until", request.args, text)
        return texts

    @cached_property
    def _drops_first_space(self) -> bool:
        tokens, count = self._tokenizer.encode_continued("a", " b")
        return not self._tokenizer.decode(tokens[-count:]).startswith(" ")

    def _run(self, rows: Sequence[TokenRequest], title: str, is_quiet: bool) -> list[RequestOutput]:
        """Runs the rows and lists their outputs in the same order."""
        by_key: dict[str, RequestOutput] = {}
        prompts = (
            (
                Prompt(key=str(number), source=f"request {number}", token_ids=tokens, adapter=self._adapter),
                params,
            )
            for number, (tokens, params) in enumerate(rows)
        )
        with (
            tqdm(total=len(rows), desc=title, disable=is_quiet) as bar,
            closing(self._llm.steps(prompts)) as steps,
        ):
            for step in steps:
                by_key |= {output.key: output for output in step.finished}
                bar.update(len(step.finished))
        outputs = [by_key[str(number)] for number in range(len(rows))]
        if errors := [output.error for output in outputs if output.error is not None]:
            raise PromptError(errors)
        return outputs


def _batch_size(batch_size: int | str) -> dict[str, int]:
    """Makes the keyword of `LLM`, if it needs one; the harness's command line passes a text."""
    if str(batch_size) in ("auto", "1"):
        return {}
    if not str(batch_size).isdecimal():
        raise ConfigError(f"batch_size={batch_size!r}: must be a number of sequences, or auto")
    return {"batch_size": int(batch_size)}


def _decoding(task_arguments: Mapping[str, Any]) -> DecodingParams:
    """Converts the generation arguments of a task to decoding parameters."""
    params = dict(normalize_gen_kwargs(dict(task_arguments), DEFAULT_MAX_TOKENS))
    until = params.pop("until", None) or ()
    params["stop"] = [text for text in ([until] if isinstance(until, str) else until) if text]
    params["max_new_tokens"] = params.pop("max_gen_toks")
    if params.get("seed") == RANDOM:
        raise ConfigError("generation_kwargs: seed=random: must be a number, for scores to be had again")
    try:
        return DecodingParams(**params)
    except TypeError as error:  # a name that is none
        raise ConfigError(f"generation_kwargs: {error}") from error


def _scored(continuation: Sequence[int], output: RequestOutput) -> Scored:
    """Scores a continuation's tokens. One without any is certain."""
    if not continuation:
        return 0.0, True
    positions = [*zip(continuation, output.prompt_logprobs or (), strict=True)]
    likely = [(scores[token], max(scores.values())) for token, scores in positions if scores is not None]
    return sum(chosen for chosen, _ in likely), all(chosen >= best for chosen, best in likely)


def _warn_of_cut(count: int, max_tokens: int) -> None:
    if count:
        logger.warning(
            f"{count} requests have more than {max_tokens} tokens: the beginning of each is left out"
        )
