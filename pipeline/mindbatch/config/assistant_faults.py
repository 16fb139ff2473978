"""Whether there is an assistant model exactly where the decoding parameters have a use for one."""

from collections.abc import Iterator

from mindbatch.config.schema import GenerateConfig, ModelTaskConfig


def assistant_faults(config: ModelTaskConfig) -> Iterator[str]:
    """Drafting needs a model that drafts. One that nothing asks for is at fault where no row could either."""
    decodings = [*config.variants.values()] or [config.decoding]
    most = max(decoding.num_assistant_tokens for decoding in decodings)
    if most > 0 and config.model.assistant is None:
        yield (
            f"decoding.num_assistant_tokens={most}: needs model.assistant, the folder of a smaller model to "
            "draft them; decoding.prompt_lookup_num_tokens needs none"
        )
    if most == 0 and config.model.assistant is not None and isinstance(config, GenerateConfig):
        yield "model.assistant: has no effect with decoding.num_assistant_tokens=0; raise that or remove it"
