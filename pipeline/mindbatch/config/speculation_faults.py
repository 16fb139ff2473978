"""What speculative decoding needs of the model's options, and the options that only it has a use for."""

from collections.abc import Iterator

from mindbatch.config.schema import GenerateConfig, ModelTaskConfig


def speculation_faults(config: ModelTaskConfig) -> Iterator[str]:
    """An assistant that nothing asks for is at fault where no row of data could ask for it either."""
    decodings = [*config.variants.values()] or [config.decoding]
    wanted = max(decoding.num_assistant_tokens for decoding in decodings)
    looked_up = max(decoding.prompt_lookup_num_tokens for decoding in decodings)
    if wanted > 0 and config.model.assistant is None:
        yield (
            f"decoding.num_assistant_tokens={wanted}: needs model.assistant, the folder of a smaller model "
            "to draft them; decoding.prompt_lookup_num_tokens needs none"
        )
    if wanted <= 0 and config.model.assistant is not None and isinstance(config, GenerateConfig):
        yield "model.assistant: has no effect with decoding.num_assistant_tokens=0; raise that or remove it"
    for name, most in (("num_assistant_tokens", wanted), ("prompt_lookup_num_tokens", looked_up)):
        if most > 0 and not config.model.use_past:
            yield f"decoding.{name}={most}: cannot go with model.use_past=false; set it to true"
