"""The names that users of vLLM, Hugging Face and OpenAI know keys by: the one table."""

from collections.abc import Collection, Mapping
from typing import Any

from mindbatch.io.fault_lines import under_own_names

_DECODING = "decoding."
_PATH = "model.checkpoint_name_or_path"
_PATHS = (
    *("model.path", "model.name", "model.folder", "model.dir", "model.name_or_path", "checkpoint", "ckpt"),
    *("model_path", "model_name", "model_name_or_path", "pretrained_model_name_or_path"),
)
OWN_NAMES: Mapping[str, str] = {
    "tensor_parallel_size": "parallel.model_parallel",
    "pipeline_parallel_size": "parallel.pipeline_stage",
    "data_parallel_size": "parallel.data_parallel",
    "max_model_len": "model.seq_length",
    "max_num_seqs": "model.batch_size",
    "max_num_batched_tokens": "runtime.max_batched_tokens",
    "enable_prefix_caching": "runtime.prefix_caching",
    "kv_cache_dtype": "model.cache_dtype",
    **dict.fromkeys(_PATHS, _PATH),
}
"""By another name, the key of the same meaning; those of decoding parameters stand with each of them."""
INSTEAD: Mapping[str, str] = {
    "gpu_memory_utilization": "runtime.cache_memory says how much memory the cache takes, as 8GiB",
    "trust_remote_code": "code of a model folder is never executed; remove it",
    "stop_token_ids": "decoding.eos_token_id names all tokens that end a text, the model's own among them",
}
"""By another name that no key stands for, what there is instead."""


def own_key(name: str, keys: Collection[str]) -> str | None:
    """The one of the keys that an unknown name, whatever its section, stands for."""
    leaf = name.rpartition(".")[2]
    own = OWN_NAMES.get(name) or OWN_NAMES.get(leaf)
    if own is None and any(key.startswith(_DECODING) for key in keys):
        from mindbatch.decoding.params import OTHER_NAMES  # not where nothing is decoded

        own = _DECODING + OTHER_NAMES.get(leaf, "")
    return own if own is not None and own in keys else None


def own_keywords(arguments: Mapping[str, Any], keywords: Mapping[str, str]) -> dict[str, Any]:
    """The arguments under their own names. keywords: by key, the name of the argument.

    Raises:
        TypeError: an argument is given under two names.
    """
    names = {other: keywords[key] for other, key in OWN_NAMES.items() if key in keywords}
    own, twice = under_own_names(arguments, names)
    if twice:
        raise TypeError("; ".join(twice))
    return own
