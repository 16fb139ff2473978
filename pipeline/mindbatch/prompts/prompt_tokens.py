"""Owns turning a row's prompt, whatever its form, into the token ids that the model is given."""

from collections.abc import Sequence

from mindbatch.errors import PromptError
from mindbatch.prompts.prompts import Prompt
from mindbatch.prompts.tokenizer import Tokenizer

NO_TOKENIZER = "the model's folder has no tokenizer; give lists of token ids, or model.tokenizer=FOLDER"
_PANIC = "PanicException"
"""Of code in Rust; it has no name to import, and derives from BaseException."""


def token_ids_of(
    prompt: Prompt, tokenizer: Tokenizer | None, most_tokens: int | None = None
) -> Sequence[int]:
    """The prompt's token ids; messages go through the chat template.

    most_tokens: a text that must have more is refused before it is encoded, which takes 300 times its bytes.

    Raises:
        PromptError: there is no tokenizer for a text, no chat template for messages, it refused them, the
            text is far too long, or the tokenizer failed.
        ConfigError: the chat template ran out of time for several rows in a row.
    """
    try:
        return _token_ids(prompt, tokenizer, most_tokens)
    except RecursionError as error:
        raise PromptError("the prompt is nested too deeply") from error
    except BaseException as error:
        if type(error).__name__ != _PANIC:
            raise
        raise PromptError(f"the tokenizer failed on it: {' '.join(str(error).split())[:300]}") from error


def _token_ids(prompt: Prompt, tokenizer: Tokenizer | None, most_tokens: int | None) -> Sequence[int]:
    if prompt.token_ids is not None:
        return prompt.token_ids
    if tokenizer is None:
        raise PromptError(NO_TOKENIZER)
    if prompt.messages is not None:
        variables = {**(prompt.chat_template_kwargs or {}), "tools": prompt.tools}
        return tokenizer.encode_chat(prompt.messages, variables=variables, most_tokens=most_tokens)
    return tokenizer.encode(prompt.text or "", most_tokens=most_tokens)
