"""Advice on names of other engines, and on keys, options and values that were removed."""

from collections.abc import Mapping
from typing import Any

INSTEAD: Mapping[str, str] = {
    "compile": "mindbatch compile compiles what ranks would run on Ascend",
    "layout": "mindbatch layout says what ranks hold, and has these keys",
    "gpu_memory_utilization": "runtime.cache_memory says how much memory the cache takes, as 8GiB",
    "ms_dtype": "model.dtype says it, as bfloat16",
    "torch_dtype": "model.dtype says it, as bfloat16",
    "mirror": "model.hub says where a model is fetched from: huggingface or modelscope",
    "trust_remote_code": "code of a model folder is never executed; remove it",
    "stop_token_ids": "decoding.eos_token_id names all tokens that end a text, the model's own among them",
    "tensorboard": "metrics.jsonl in output.dir has the samples, a line of JSON every 5 s; remove it",
    "harness": "try: python -m mindbatch.lm_eval --model mindbatch --model_args pretrained=DIR --tasks NAMES",
    "launch=mpirun": "was removed; try: launch=dynamic, or mpirun -n NUMBER mindbatch ...",
    "launch=msrun": "was removed; try: launch=dynamic, or msrun ... python -m mindbatch ...",
}
"""Advice for names of other engines that have no key here, and for removed keys and options."""

SAVED_EARLIER: Mapping[str, tuple[Any, ...]] = {
    "output.tensorboard": (False, True),
    "launch.launcher": ("mpirun", "msrun"),
    "harness": (
        dict.fromkeys(("tasks", "include_path", "num_fewshot", "limit")) | {"apply_chat_template": False},
    ),
}
"""Removed values, by key, that files may still have, without effect: runs of earlier versions saved them."""
