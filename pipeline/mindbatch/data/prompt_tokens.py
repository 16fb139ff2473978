"""Owns turning a row's prompt, whatever its form, into the token ids that the model is given."""

from collections.abc import Sequence

from mindbatch.data.prompts import Prompt
from mindbatch.data.tokenizer import Tokenizer
from mindbatch.errors import PromptError

NO_TOKENIZER = "the model's folder has no tokenizer; give lists of token ids, or model.tokenizer=FOLDER"


def token_ids_of(prompt: Prompt, tokenizer: Tokenizer | None) -> Sequence[int]:
    """The prompt's token ids; messages go through the chat template.

    Raises:
        PromptError: there is no tokenizer for a text, or no chat template for messages, or it refused them.
    """
    if prompt.token_ids is not None:
        return prompt.token_ids
    if tokenizer is None:
        raise PromptError(NO_TOKENIZER)
    if prompt.messages is not None:
        variables = {**(prompt.chat_template_kwargs or {}), "tools": prompt.tools}
        return tokenizer.encode_chat(prompt.messages, variables=variables)
    return tokenizer.encode(prompt.text or "")
