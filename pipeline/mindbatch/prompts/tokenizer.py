"""Encodes texts and chats to token ids, and decodes them."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import Encoding
from tokenizers.pre_tokenizers import PreTokenizer

from mindbatch.io.amounts import counted
from mindbatch.io.error_lines import shown
from mindbatch.io.errors import PromptError
from mindbatch.io.strict_json import unicode_error
from mindbatch.prompts.chat import ChatLimits, ChatTemplates, TemplateLimit
from mindbatch.prompts.control_text import (
    ControlText,
    Encoded,
    PlainEncoder,
    absent_characters,
    control_spans,
    strings_in,
)
from mindbatch.prompts.messages import checked_conversation
from mindbatch.prompts.text_encoding import (
    CANNOT_ENCODE,
    encoding_of,
    refuse_longer,
    refuse_longer_conversation,
)
from mindbatch.prompts.token_bytes import LoadedTokenizer, TokenBytes, token_bytes_of
from mindbatch.prompts.tokenizer_files import load_tokenizer_files
from mindbatch.prompts.tokenizer_folder import library_errors_as

PLAIN, PARSE = "plain", "parse"
"""Whether the text of a control token in a prompt stays text or becomes the token."""

_END_TOKENS = 64
"""Tokens at the end of a prompt that are decoded to find an open tag."""
_MANY_TOKENS = 1 << 12


class Tokenizer:
    """A model folder's tokenizer. Control tokens are those marked special; in data their text stays text.

    Thread-safe.
    """

    def __init__(
        self, loaded: LoadedTokenizer, chat_limits: ChatLimits | None = None, *, special_tokens: str = PLAIN
    ) -> None:
        self._words = None if loaded.words is None else PreTokenizer.custom(loaded.words)
        self._backend = loaded.backend
        self.warnings = loaded.warnings
        if self._words is not None:
            self._backend.pre_tokenizer = self._words
        self._chat = ChatTemplates(loaded.templates, loaded.named_tokens, chat_limits)
        special = {i: t.content for i, t in self._backend.get_added_tokens_decoder().items() if t.special}
        self._special = special
        # Data may contain the unknown token, which has no control function.
        self._commanding = special.keys() - {loaded.unk_token_id}
        self._control = ControlText(special.values())
        unlike_text = special.keys() - ({loaded.unk_token_id} - {loaded.bos_token_id, loaded.eos_token_id})
        self._control_in_prompts = ControlText(special[i] for i in unlike_text)
        self._parses = special_tokens == PARSE
        self._num_unparsed = 0
        self._continued = ""
        self._placeholders: dict[str, str] = {}
        self._lock = threading.Lock()
        self._plain: PlainEncoder | None = None
        self.special_ids: frozenset[int] = frozenset(special)
        self.bos_token_id: int | None = loaded.bos_token_id
        self.eos_token_ids: tuple[int, ...] = () if loaded.eos_token_id is None else (loaded.eos_token_id,)

    @classmethod
    def load(
        cls, folder: Path, chat_limits: ChatLimits | None = None, *, special_tokens: str = PLAIN
    ) -> Tokenizer | None:
        """Loads the tokenizer of a model folder; returns None if the folder has no tokenizer file.

        Reads tokenizer.json, vocab.json + merges.txt or tokenizer.model, as transformers does, offline and
        without running code from the folder.

        special_tokens: PARSE makes tokens of the control tokens that a text spells out.

        Raises:
            CheckpointError: a file is damaged, or the tokenizer needs the folder's own code.
        """
        loaded = load_tokenizer_files(Path(folder))
        return None if loaded is None else cls(loaded, chat_limits, special_tokens=special_tokens)

    def refuse_placeholders(self, ids: Iterable[tuple[int, str]]) -> None:
        """Refuses texts that spell out these tokens from now on. ids: token ids with their names in messages.

        In multimodal models these tokens are replaced by an image, sound or video, which is not supported.
        """
        added = self._backend.get_added_tokens_decoder()
        self._placeholders = {added[token].content: name for token, name in ids if token in added}

    @cached_property
    def vocab_size(self) -> int:
        """One more than the highest token id, added tokens included."""
        return max(self.vocabulary().values(), default=-1) + 1

    def vocabulary(self) -> dict[str, int]:
        """Returns the ids of all tokens, added tokens included, by the tokenizer's names."""
        return dict(self._backend.get_vocab(with_added_tokens=True))

    @cached_property
    def token_bytes(self) -> TokenBytes:
        """Maps (token id, previous token id or None) to the bytes it adds to a text; see `TokenBytes`."""
        return token_bytes_of(self._backend)

    @cached_property
    def output_start(self) -> tuple[int, ...]:
        """Tokens after every text before its output; empty if texts start with BOS."""
        bare, full = (self.encode("a", add_special_tokens=added) for added in (False, True))
        ends = self.bos_token_id is not None and full[-1:] == [self.bos_token_id]
        return tuple(full[len(bare) :]) if ends else ()

    @cached_property
    def _text_start(self) -> list[int]:
        """Tokens before every text, often BOS."""
        bare, full = (self._encode_text("a", added, False).ids for added in (False, True))
        starts = range(len(full) - len(bare) + 1)
        return full[: next((i for i in starts if full[i : i + len(bare)] == bare), 0)]

    def take_note(self) -> str | None:
        """Returns a note on the texts since the last call whose control tokens stayed plain text, or None."""
        count, self._num_unparsed = self._num_unparsed, 0
        if not count:
            return None
        return (
            f"{counted(count, 'prompt')} {'spells' if count == 1 else 'spell'} out control tokens, kept as "
            "plain text; model.special_tokens=parse reads them, as in prompts rendered by a chat template"
        )

    @property
    def special_tokens(self) -> dict[int, str]:
        """The texts of the special tokens by id."""
        return dict(self._special)

    @property
    def has_chat_template(self) -> bool:
        return bool(self._chat)

    @property
    def chat_template(self) -> str | None:
        return self._chat.default

    @property
    def tool_template(self) -> str | None:
        """The template of chats with tools."""
        return self._chat.with_tools

    def try_chat(self, messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> str | None:
        """Renders a conversation with tools, its control tokens spelt out; None if the template refuses it.

        Raises TemplateLimit."""
        try:
            return self._rendered(messages, {"tools": tools}, False, None)
        except TemplateLimit:
            raise
        except PromptError:
            return None

    def chat_text(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        date: str | None = None,
    ) -> str:
        """Renders a conversation with its control tokens spelt out. Unlike in `encode_chat`, they cannot be
        distinguished from the same text in a message. date: see there.

        Raises:
            PromptError: there is no template, messages are malformed, or the template failed or refused them.
        """
        conversation = self._chat.adapted(checked_conversation(messages))
        return self._rendered(conversation, {}, add_generation_prompt, date)

    def encode(
        self,
        text: str,
        *,
        add_special_tokens: bool = True,
        allow_special: bool | None = None,
        max_tokens: int | None = None,
    ) -> list[int]:
        """Encodes a text, by default with the special tokens that the model expects around it (often BOS).

        allow_special: makes tokens of the special tokens that the text spells out; None: as set in `load`.
            A text that spells out the special tokens before every text then gets none around it.

        Raises:
            PromptError: the text has a lone surrogate, or is so long that it has more than `max_tokens`.
        """
        self._refuse_longer(text, max_tokens)
        if allow_special is None:
            self._count_unparsed(text)
        return self._encode_text(text, add_special_tokens, allow_special).ids

    def encode_continued(self, text: str, continuation: str) -> tuple[list[int], int]:
        """Encodes a text and its continuation as one; also returns how many tokens reach beyond the text.

        Special tokens after the text are left out. Raises as `encode`."""
        if text != self._continued:  # count once for several continuations
            self._count_unparsed(text)
        self._continued = text
        return self._encode_text(text + continuation).split(len(continuation))

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        variables: Mapping[str, Any] | None = None,
        max_tokens: int | None = None,
        date: str | None = None,
    ) -> list[int]:
        """Renders and encodes a conversation by the chat template, which writes its own BOS.

        The template's control tokens are tokens; their text inside messages and `variables` (tools,
        documents...) stays text.

        date: the date of the template's clock, as YYYY-MM-DD; None is today.

        Raises:
            PromptError: there is no template, messages are malformed, the template failed or refused them,
                or its text is so long that it has more than `max_tokens`.
        """
        return self._encode_messages(
            messages, variables, add_generation_prompt, max_tokens=max_tokens, date=date
        ).ids

    def encode_chat_continued(
        self,
        messages: Sequence[Mapping[str, Any]],
        continuation: str,
        variables: Mapping[str, Any] | None = None,
        date: str | None = None,
    ) -> tuple[list[int], int]:
        """Encodes a conversation with the generation prompt and a continuation, as `encode_continued`."""
        encoded = self._encode_messages(messages, variables, True, continuation, date=date)
        return encoded.split(len(continuation))

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Decodes tokens without "cleaning up" spaces, whatever tokenizer_config.json says.

        Unknown ids are ignored."""
        with self._lock:
            if len(token_ids) < _MANY_TOKENS:
                text: str = self._backend.decode(list(token_ids), skip_special_tokens=skip_special_tokens)
            else:  # only decode_batch releases the interpreter lock
                [text] = self._backend.decode_batch(
                    [list(token_ids)], skip_special_tokens=skip_special_tokens
                )
        return text

    def end_of(self, token_ids: Sequence[int]) -> str:
        """Decodes the end of a prompt, its control tokens spelt out."""
        return self.decode(token_ids[-_END_TOKENS:], skip_special_tokens=False)

    def close(self) -> None:
        self._chat.close()

    def _refuse_longer(self, text: str, max_tokens: int | None) -> None:
        refuse_longer(
            text, max_tokens, self._longest_entry, lambda part: len(self._encoding(part, plain=False))
        )

    def _refuse_placeholder_in(self, text: str) -> None:
        for token, name in self._placeholders.items():
            if token in text:
                raise PromptError(
                    f"the text has {shown(token)}, the {name} of the model, which marks an image, sound or "
                    "video; only text prompts are supported"
                )

    @cached_property
    def _longest_entry(self) -> int:
        return max(map(len, self._backend.get_vocab(with_added_tokens=True)), default=1)

    def _count_unparsed(self, text: str) -> None:
        if not self._parses and self._control_in_prompts.pattern.search(text):
            with self._lock:
                self._num_unparsed += 1

    def _encode_text(
        self, text: str, add_special_tokens: bool = True, allow_special: bool | None = None
    ) -> Encoded:
        if error := unicode_error(text):
            raise PromptError(f"the text {error}")
        self._refuse_placeholder_in(text)
        parses = self._parses if allow_special is None else allow_special
        encoding = self._encoding(text, plain=not parses)
        if parses and allow_special is None:
            start = self._text_start
            add_special_tokens = add_special_tokens and not (start and encoding.ids[: len(start)] == start)
        if parses or self._commanding.isdisjoint(encoding.ids):
            with library_errors_as(PromptError, CANNOT_ENCODE):
                encoding = self._backend.post_process(encoding, None, add_special_tokens)
            return Encoded(list(encoding.ids), encoding, text)
        gap, slot = absent_characters([text], 2)
        broken = self._control.broken(text, gap)
        return self._plain_encoder(gap, slot).encode(broken, add_special_tokens=add_special_tokens)

    def _encode_messages(
        self,
        messages: Sequence[Mapping[str, Any]],
        variables: Mapping[str, Any] | None,
        add_generation_prompt: bool,
        continuation: str = "",
        max_tokens: int | None = None,
        date: str | None = None,
    ) -> Encoded:
        template_variables = {**(variables or {})}
        has_tools = template_variables.get("tools") is not None
        conversation = checked_conversation(messages)
        # Before the conversation is serialised for the template's process.
        refuse_longer_conversation([conversation, template_variables], max_tokens)
        # Before the search for control texts, which JSON text of arguments may escape.
        conversation = self._chat.adapted(conversation, has_tools=has_tools)
        data = [[{**message, "role": ""} for message in conversation], template_variables, continuation]
        if not self._control.endangers(data):
            text = (
                self._rendered(conversation, template_variables, add_generation_prompt, date) + continuation
            )
            self._refuse_placeholder_in(text)
            self._refuse_longer(text, max_tokens)
            encoding = self._encoding(text, plain=False)
            return Encoded(list(encoding.ids), encoding, text)
        gap, slot = absent_characters(strings_in(data), 2)
        marked = [{**self._control.broken(message, gap), "role": message["role"]} for message in conversation]
        text = self._rendered(
            marked, self._control.broken(template_variables, gap), add_generation_prompt, date
        )
        text += self._control.broken(continuation, gap)
        self._refuse_placeholder_in(text.replace(gap, ""))
        self._refuse_longer(text.replace(gap, ""), max_tokens)
        return self._encode_marked(text, gap, slot)

    def _rendered(
        self, messages: list[dict[str, Any]], variables: dict[str, Any], add_prompt: bool, date: str | None
    ) -> str:
        text = self._chat.render(messages, add_generation_prompt=add_prompt, variables=variables, date=date)
        if error := unicode_error(text):
            raise PromptError(f"chat template: its output {error}")
        return text

    def _encode_marked(self, text: str, gap: str, slot: str) -> Encoded:
        """Encodes rendered text in which `gap` keeps control texts of the data from matching.

        Control texts that still match are the template's. They are replaced by slots, so that the text around
        them is encoded as before."""
        spans = control_spans(self._encoding(text, plain=False), text, self._special)
        ends = [0, *(end for _, end, _ in spans)]
        starts = [*(start for start, _, _ in spans), len(text)]
        pieces = [
            text[end:start].replace(gap, "").replace(slot, "")
            for end, start in zip(ends, starts, strict=True)
        ]
        encoder = self._plain_encoder(gap, slot)
        fill = [token_id for _, _, token_id in spans]
        encoded = encoder.encode(slot.join(pieces), add_special_tokens=False, fill=fill)
        if sum(i in self._commanding for i in encoded.ids) == sum(i in self._commanding for i in fill):
            return encoded
        broken = [self._control.broken(piece, gap) for piece in pieces]
        return encoder.encode(slot.join(broken), add_special_tokens=False, fill=fill)

    def _encoding(self, text: str, *, plain: bool) -> Encoding:
        with self._lock:  # the switch belongs to the shared backend
            self._backend.encode_special_tokens = plain
            return encoding_of(self._backend, text)

    def _plain_encoder(self, gap: str, slot: str) -> PlainEncoder:
        """Returns the encoder for these two marks, which is cached because they rarely change."""
        with self._lock:
            if self._plain is None or (self._plain.gap, self._plain.slot) != (gap, slot):
                with library_errors_as(PromptError, CANNOT_ENCODE):
                    self._plain = PlainEncoder(self._backend, gap, slot, self._words)
            return self._plain
