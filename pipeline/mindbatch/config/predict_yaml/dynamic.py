"""Lists the keys of YAMLs of MindFormers 2.1 for dynamic graphs, whose `run_mode: predict` is greedy.

Source: the classes of configurations of mindformers 2.1.0, and its reader of inputs.
"""

from contextlib import suppress
from pathlib import Path
from typing import Any

from mindbatch.checkpoint.folders.iteration_files import holds_adapter
from mindbatch.config.paths import resolve_path
from mindbatch.config.predict_yaml import conversions as to
from mindbatch.config.predict_yaml.conversions import (
    KEPT,
    NOTHING,
    KeyRule,
    MapsTo,
    PredictYaml,
    Redirect,
    Verdict,
    no_effect,
    only,
    rejected,
)
from mindbatch.config.predict_yaml.tables import (
    IDLE,
    LOADING,
    NO_CODE,
    ONE_FORM,
    PRECISION,
    RUN,
    STRATEGIES,
    TRAINING,
    UNREAD,
    WHICH_MODEL,
)

MODEL = "model."
FORM_SECTIONS = frozenset({"checkpoint", "inference", "parallelism", "training"})
"""Top-level sections that only this form has."""
CLOSED_SECTION = "inference."
"""The prefix of keys of which an unknown one is an error in MindFormers, too."""
DEFAULTS: dict[str, Any] = {"inference.max_new_tokens": 50, "inference.batch_size": 8}
"""MindFormers' values of keys that the section `inference` does not have."""

INSTRUCTION, INPUT = "instruction", "input"
TEMPLATE = (
    f"{{% set texts = [row.get('{INSTRUCTION}'), row.get('{INPUT}')] | select | list %}}"
    f"{{{{ texts | join('\\n') if texts else row['{INSTRUCTION}'] }}}}"
)
"""Joins instruction and input as MindFormers does; a row without either is an error."""
_PROMPT_KEYS = ("prompts", "prompts_file", "messages")
_FILE_SUFFIXES = (".json", ".jsonl", ".txt")
"""Suffixes of what is a file and no prompt, also where it does not exist."""
_COLUMN_KEYS = ("data.prompt_column", "data.messages_column", "data.template", "data.template_file")


def checkpoint_folder(value: Any, predict_yaml: PredictYaml) -> Any:
    """Reads the folder of weights and tokenizer; an adapter without its base is refused."""
    if isinstance(value, str) and (path := _path(value)) and holds_adapter(path):
        return rejected(
            "is an adapter without its base, saved with save_trainable_only: True, which is not read; give "
            "the base here, and an adapter of PEFT in lora.adapters"
        )
    return to.weights_folder(value, predict_yaml)


def max_new_tokens(value: Any, predict_yaml: PredictYaml) -> Any:
    """Reads the number of new tokens, which a length of prompt and output overrides."""
    if "decoding.max_length" in predict_yaml.overrides:
        return no_effect("decoding.max_length overrides it")
    return value


def input_data(value: Any, predict_yaml: PredictYaml) -> tuple[Redirect, ...] | Verdict:
    """Reads texts and records as prompts, and the path of a file as a dataset or a file of prompts."""
    if value in NOTHING or value == []:
        return KEPT
    if set_key := next((key for key in (*_PROMPT_KEYS, "data.path") if key in predict_yaml.overrides), None):
        return no_effect(f"{set_key} overrides it")
    if isinstance(value, str) and (path := _path(value)) and path.is_file():
        return _file(value, predict_yaml)
    if isinstance(value, str) and not any(map(str.isspace, value)) and Path(value).suffix in _FILE_SUFFIXES:
        return rejected("no such file")
    if "prompts" not in predict_yaml.keys:
        if "data.path" not in predict_yaml.keys:
            return no_effect(to.NO_SUCH_KEY)
        return rejected("this task reads a file: write the prompts to one, or use mindbatch generate")
    texts = [_text(item) for item in (value if isinstance(value, list) else [value])]
    if None in texts:
        return rejected(
            "must be a text, the path of a file, a record with an instruction, or a list of these"
        )
    return (Redirect("prompts", texts),)


def _path(text: str) -> Path | None:
    """Returns the path of a file or folder that exists, or None: a prompt may be longer than any path."""
    with suppress(OSError, ValueError):
        if text and (path := resolve_path(text)).exists():
            return path
    return None


def _file(path: str, predict_yaml: PredictYaml) -> tuple[Redirect, ...] | Verdict:
    """Reads a file of JSON lines with `instruction` and `input`, or a text with a prompt on each line."""
    has_records = Path(path).suffix.lower() == ".jsonl"
    if "data.path" in predict_yaml.keys:
        if not has_records:
            return Redirect("data.path", path), Redirect("data.format", "text")
        has_own = any(key in predict_yaml.overrides for key in _COLUMN_KEYS)
        dataset = (Redirect("data.path", path),)
        return dataset if has_own else (*dataset, Redirect("data.template", TEMPLATE))
    if "prompts_file" not in predict_yaml.keys:
        return no_effect(to.NO_SUCH_KEY)
    if has_records:
        return rejected("records are a dataset: use mindbatch batch, or name prompts on the command line")
    return (Redirect("prompts_file", path),)


def _text(item: Any) -> str | None:
    """Returns the prompt of a text or a record; None for anything else."""
    if isinstance(item, dict):
        parts = [item.get(INSTRUCTION) or "", item.get(INPUT) or ""]
        item = (
            "\n".join(part for part in parts if part) if all(isinstance(part, str) for part in parts) else ""
        )
    return item if isinstance(item, str) and item else None


DYNAMIC: dict[str, KeyRule] = {
    "run_mode": RUN["run_mode"],
    "register_path": RUN["register_path"],
    to.LOAD_PATH: MapsTo(to.CHECKPOINT, checkpoint_folder),
    "inference.max_new_tokens": MapsTo("decoding.max_new_tokens", max_new_tokens),
    "inference.batch_size": MapsTo("model.batch_size"),
    "inference.input_data": MapsTo("data.path", input_data, others=_PROMPT_KEYS),
    "inference.output": lambda value, predict_yaml: no_effect("output.dir or output.file is for results"),
    "training.seed": MapsTo("decoding.seed"),
    "parallelism.tensor_parallel": MapsTo("parallel.model_parallel"),
    "parallelism.pipeline_parallel": MapsTo("parallel.pipeline_stage"),
    "parallelism.expert_parallel": RUN["parallel_config.expert_parallel"],
    "parallelism.context_parallel": RUN["parallel_config.context_parallel"],
    **{name: rule for name, rule in RUN.items() if name.startswith("context.")},
    f"{MODEL}seq_length": MapsTo("model.seq_length"),
    f"{MODEL}compute_dtype": MapsTo("model.dtype", to.float_type),
    f"{MODEL}params_dtype": MapsTo("model.dtype", to.float_type),
    f"{MODEL}trust_remote_code": to.not_set(NO_CODE),
    f"{MODEL}auto_register": to.not_set(NO_CODE),
    f"{MODEL}experimental_attention_variant": only((None,), ONE_FORM),
}

REPLICAS = "parallel.data_parallel sets the number of replicas; weights are not sharded over them"

IDLE_DYNAMIC: dict[str, str] = {
    **dict.fromkeys(UNREAD, TRAINING),
    "checkpoint.base_load_path": "checkpoint.load_path has the whole model",
    **dict.fromkeys(("checkpoint.load_", "checkpoint.reshard_", "checkpoint.no_load_"), LOADING),
    **dict.fromkeys(("checkpoint.", "training."), TRAINING),
    "parallelism.data_parallel": REPLICAS,
    "parallelism.": STRATEGIES,
    "lora_config": "an adapter is given in lora.adapters",
    "context.": IDLE["context."],
    "output_dir": IDLE["output_dir"],
    f"{MODEL}architectures": WHICH_MODEL,
    f"{MODEL}pad_token_id": "nothing is padded",
    **dict.fromkeys(
        [
            f"{MODEL}{name}"
            for name in ("layernorm_compute_", "softmax_compute_", "rotary_dtype", "router_dense_type")
            + ("moe_router_dtype", "attention_softmax_in_fp32", "fp32_residual_connection")
        ],
        PRECISION,
    ),
    **dict.fromkeys(
        [
            f"{MODEL}{name}"
            for name in ("attention_dropout", "hidden_dropout", "initializer_range", "init_method_std")
            + ("num_nextn_predict_layers", "mtp_", "moe_aux_loss", "moe_router_bias_update", "moe_token_drop")
            + ("moe_router_load_balancing", "moe_router_force_", "use_pad_tokens", "calculate_per_token_loss")
            + ("chunk_loss_num", "offset", "ignore_token_id")
        ],
        TRAINING,
    ),
    **dict.fromkeys(
        [
            f"{MODEL}{name}"
            for name in ("use_flash_attention", "use_attn_mask", "use_eod_", "mla_qkv_concat", "input_layout")
            + ("moe_grouped_gemm", "apply_rope_fusion", "sparse_mode", "is_dynamic")
        ],
        "it chooses a kernel and changes no result",
    ),
}
"""Reasons why keys of this form without an entry have no effect, by prefix of the key."""
