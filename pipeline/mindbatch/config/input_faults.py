"""What cannot go together in the inputs and outputs of `mindbatch generate`."""

from collections.abc import Iterator

from mindbatch.config.schema import GenerateConfig, PromptTaskConfig


def input_faults(config: PromptTaskConfig) -> Iterator[str]:
    """Prompts come from exactly one place, and every option about them has an effect."""
    given = [name for name in ("prompts", "prompts_file", "messages") if getattr(config, name) is not None]
    last = "messages=..."
    if isinstance(config, GenerateConfig):
        given += ["interactive"] if config.interactive else []
        last = "messages=... or interactive=true"
    if not given:
        yield (
            "nothing to generate: give prompts='[\"One, two,\"]', prompts_file=FILE (- is standard input), "
            f"{last}"
        )
    if len(given) > 1:
        yield f"{', '.join(given)}: only one of these can be given"
    for name in ("system", "tools", "chat_template_kwargs") if not (config.chat or _may_chat(config)) else ():
        if getattr(config, name) is not None:
            yield f"{name}: has no effect without chat=true or messages; set chat=true or remove it"
    if isinstance(config, GenerateConfig):
        yield from _generate_faults(config)


def _may_chat(config: PromptTaskConfig) -> bool:
    """Whether prompts may be conversations by themselves: read_prompts knows better."""
    return config.messages is not None or config.prompts_file is not None or isinstance(config.prompts, list)


def _generate_faults(config: GenerateConfig) -> Iterator[str]:
    if config.interactive:
        yield from _conversation_faults(config)
    if config.output.format == "json":
        for name in ("stream", "interactive"):
            if getattr(config, name):
                yield f"{name}=true: cannot go with output.format=json, which is written when a row is done"


def _conversation_faults(config: GenerateConfig) -> Iterator[str]:
    """What has no effect while the user is asked for prompts."""
    if config.output.file is not None:
        yield "output.file: has no effect with interactive=true, which answers on the screen; remove it"
    samples = config.decoding.num_return_sequences
    if samples > 1:
        yield (
            f"decoding.num_return_sequences={samples}: interactive=true gives one answer to each prompt; "
            "set it to 1"
        )
