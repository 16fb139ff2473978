"""Over how many ranks MindFormers' classes divide a model: told from its sizes alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from mindbatch.backends.mindformers.description import Description, GroupedAttention


def stages_fault(stages: int) -> str:
    """Why there is one stage only."""
    return (
        f"parallel.pipeline_stage={stages}: not with model.provider=mindformers, whose networks are not "
        "divided by layers; allowed: 1 with parallel.model_parallel, or model.provider=native"
    )


def division_faults(model: Description, size: int) -> Iterator[str]:
    """Why a model cannot be divided over so many ranks: all that does not divide, and what would."""
    undivided = _undivided(model, size)
    if undivided:
        numbers = ", ".join(f"{name}={number}" for name, number in undivided.items())
        allowed = ", ".join(str(each) for each in range(1, _heads(model) + 1) if not _undivided(model, each))
        yield f"parallel.model_parallel={size}: does not divide {numbers}; allowed for this model: {allowed}"


def _heads(model: Description) -> int:
    return model.attention.heads


def _undivided(model: Description, size: int) -> Mapping[str, int]:
    """Sizes that so many ranks cannot share, by their keys in config.json; the vocabulary is not padded."""
    numbers = {
        "num_attention_heads": _heads(model),
        "intermediate_size": model.intermediate_size,
        "vocab_size": model.vocab_size,
    }
    if model.experts is not None:
        numbers["moe_intermediate_size"] = model.experts.width
        if model.experts.shared_width:
            numbers["shared_expert_intermediate_size"] = model.experts.shared_width
    found = {name: number for name, number in numbers.items() if number % size}
    attention = model.attention
    if isinstance(attention, GroupedAttention) and attention.kv_heads % size and size % attention.kv_heads:
        found["num_key_value_heads"] = attention.kv_heads
    return found
