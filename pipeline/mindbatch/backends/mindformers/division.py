"""Over how many ranks MindFormers' classes divide a model: told from its sizes alone."""

from collections.abc import Iterator, Mapping

from mindbatch.models.architecture import Architecture


def stages_fault(stages: int) -> str:
    return (
        f"parallel.pipeline_stage={stages}: not with model.provider=mindformers, whose networks are not "
        "divided by layers; allowed: 1 with parallel.model_parallel, or model.provider=native"
    )


def division_faults(arch: Architecture, size: int) -> Iterator[str]:
    """Yields why a model cannot be divided over so many ranks: all that does not divide, and what would."""
    undivided = _undivided(arch, size)
    if undivided:
        numbers = ", ".join(f"{name}={number}" for name, number in undivided.items())
        allowed = ", ".join(
            str(candidate) for candidate in range(1, arch.heads + 1) if not _undivided(arch, candidate)
        )
        yield f"parallel.model_parallel={size}: does not divide {numbers}; allowed for this model: {allowed}"


def _undivided(arch: Architecture, size: int) -> Mapping[str, int]:
    """Sizes that so many ranks cannot share, by their keys in config.json; the vocabulary is not padded."""
    numbers = {
        "num_attention_heads": arch.heads,
        "intermediate_size": arch.intermediate_size,
        "vocab_size": arch.vocab_size,
    }
    if arch.experts is not None:
        numbers["moe_intermediate_size"] = arch.experts.intermediate_size
        if arch.experts.shared:
            numbers["shared_expert_intermediate_size"] = sum(arch.experts.shared)
    undivided = {name: number for name, number in numbers.items() if number % size}
    if arch.latent is None and arch.kv_heads % size and size % arch.kv_heads:
        undivided["num_key_value_heads"] = arch.kv_heads
    return undivided
