"""The sections that tasks which run a model share: the model, decoding, parallelism and the device."""

from dataclasses import dataclass, make_dataclass
from typing import TYPE_CHECKING, Any, get_type_hints

from mindbatch.config.schema import needs, option
from mindbatch.config_json.reader import IgnoredKeys
from mindbatch.decoding.params import PARAMETERS, DecodingParams
from mindbatch.fields import kinds as kind
from mindbatch.hub.models import HUGGING_FACE, MODEL_SCOPE
from mindbatch.model_spec.registry import MODEL_TYPES

MAX_THREADS = 256
"""Limit of the C++ kernels' threads, the same as in csrc/thread_pool.cpp."""

DEFAULT_BATCH_SIZE = 32
"""Default of model.batch_size. It is lowered to the tokens of a step; larger values of users are refused."""


_PATHS = (
    *("model.path", "model.name", "model.folder", "model.dir", "model.name_or_path", "checkpoint", "ckpt"),
    *("model_path", "model_name", "model_name_or_path", "pretrained_model_name_or_path"),
)


@dataclass
class ModelConfig:
    """The model, its number types and the sizes of a step."""

    type: str = option(
        "auto", "architecture; auto reads it from the folder's config.json", kind.choice("auto", *MODEL_TYPES)
    )
    checkpoint_name_or_path: str | None = option(
        None,
        "Hugging Face folder: config.json, safetensors, tokenizer files; or a model's name on the hub",
        is_path=True,
        aliases=_PATHS,
    )
    revision: str | None = option(
        None,
        "branch, tag or commit of models given by name; null: main, as fetched before",
        is_kept=False,
    )
    hub: str = option(
        HUGGING_FACE,
        "where models given by name come from",
        kind.choice(HUGGING_FACE, MODEL_SCOPE),
        is_kept=False,
    )
    download: bool = option(
        False,
        "fetch models given by name that are not in the hub's cache; false: ask on a terminal",
        is_kept=False,
    )
    download_files: Any = option(
        (),
        "further files to fetch, as patterns: pytorch_model*.bin, for one, which are pickles",
        kind.texts("patterns", "'[\"*.bin\"]'"),
        is_kept=False,
        needs=(needs("model.download", True),),
    )
    provider: str = option(
        "native",
        "whose model code runs: MindBatch's own or MindFormers'",
        kind.choice("native", "mindformers"),
    )
    use_past: bool = option(True, "keep keys and values of past tokens; false recomputes them at every step")
    batch_size: int = option(
        DEFAULT_BATCH_SIZE,
        "largest number of sequences in one step; more of them are faster where the cache holds them",
        kind.count(1),
        aliases=("max_num_seqs",),
    )
    seq_length: int | None = option(
        None,
        "longest prompt + output, in tokens; null: the model's own",
        kind.count(1),
        aliases=("max_model_len",),
    )
    dtype: str = option(
        "auto",
        "type of weights and arithmetic; auto is float32 on CPU, bfloat16 on Ascend",
        kind.choice("auto", "float32", "float16", "bfloat16"),
    )
    quantization: str | None = option(
        "auto",
        "auto keeps numbers that the folder has in 4 or 8 bits, on CPU, all else as model.dtype; int8 stores "
        "every matrix as integers with a scale for each output, on CPU; null: as model.dtype",
        kind.choice("auto", "int8"),
    )
    cache_dtype: str = option(
        "auto",
        "type of cached keys and values; auto is bfloat16 with such or int8 weights on CPU, else as computed",
        kind.choice("auto", "float32", "float16", "bfloat16"),
        aliases=("kv_cache_dtype",),
    )
    tokenizer: str | None = option(None, "folder of the tokenizer; null: the model's folder", is_path=True)
    special_tokens: str = option(
        "plain",
        "control tokens spelt out in a text prompt: keep them as plain text, or parse them; never in chats",
        kind.choice("plain", "parse"),
    )
    assistant: str | None = option(
        None, "folder of a smaller model that drafts tokens for speculative decoding", is_path=True
    )
    mindformers_yaml: str | None = option(
        None,
        "predict YAML of MindFormers; keys of the command line and of --config override it",
        is_path=True,
        is_kept=False,
    )
    ignore_config_keys: Any = option(
        (),
        "unknown keys of config.json to ignore, because they change nothing of the computation",
        kind.texts("keys of config.json"),
    )


def _decoding_schema() -> type:
    """Makes the section with a key for each decoding parameter, of types that OmegaConf can hold.

    A parameter of no plain type has the type Any, and the default null if it may be null.
    """
    hints = get_type_hints(DecodingParams)
    keys = []
    for name, declared in PARAMETERS.items():
        if declared.in_config:
            is_plain, words = declared.kind.is_plain, declared.kind.brief or declared.kind.takes
            more: dict[str, Any] = {
                "topic": declared.topic,
                "aliases": tuple({*declared.openai} - {*PARAMETERS}),
            }
            if is_plain:
                key = option(declared.default, declared.meaning, **more)
            else:
                default = None if words.endswith("null") else declared.default
                key = option(default, declared.meaning, kind.described(words), **more)
            keys.append((name, hints[name] if is_plain else Any, key))
    doc = "How the next token is chosen and when a row ends."
    return make_dataclass("DecodingConfig", keys, namespace={"__doc__": doc, "__module__": __name__})


if TYPE_CHECKING:
    DecodingConfig = DecodingParams  # has the same attributes
else:
    DecodingConfig = _decoding_schema()


@dataclass
class ParallelConfig:
    """How the work is divided among processes."""

    data_parallel: int = option(
        1,
        "replicas of the model; each runs a share of the rows",
        kind.count(1),
        aliases=("data_parallel_size",),
    )
    model_parallel: int = option(
        1,
        "ranks that share every layer; must divide the attention heads. Other values may change rare tokens",
        kind.count(1),
        aliases=("tensor_parallel_size",),
    )
    pipeline_stage: int = option(
        1,
        "pipeline stages, each with a part of the layers",
        kind.count(1),
        aliases=("pipeline_parallel_size",),
    )
    device_map: Any = option(
        None,
        "layers of each stage; null balances the time of the stages, auto their bytes",
        kind.described("auto, a list with the number of layers of each stage, or null"),
    )

    @property
    def layer_counts(self) -> str | tuple[int, ...] | None:
        """`device_map`, its list as a tuple; one stage has all layers."""
        if self.pipeline_stage == 1:
            return None
        return tuple(self.device_map) if isinstance(self.device_map, list) else self.device_map


@dataclass
class RuntimeConfig:
    """The device and its memory."""

    device_target: str = option("CPU", "where the model runs", kind.choice("CPU", "Ascend"))
    num_threads: int | None = option(
        None, "threads of the kernels; null: one for each core", kind.count(1, MAX_THREADS)
    )
    cache_memory: str = option("1GiB", "budget of the key/value cache: 512MB, 1.5GiB or plain bytes")
    block_size: int = option(
        16,
        "tokens in a block of the cache; small blocks waste less memory, large ones are faster",
        kind.choice(8, 16, 32, 64, 128),
    )
    max_batched_tokens: int = option(
        512,
        "largest number of tokens in one step, prompts included",
        kind.count(1),
        aliases=("max_num_batched_tokens",),
    )
    prefix_caching: bool = option(
        True,
        "compute a beginning that prompts share once, and keep it in the cache",
        aliases=("enable_prefix_caching",),
    )
    kernels: str = option(
        "auto",
        "kernels of the CPU; auto: the native ones if they are built",
        kind.choice("auto", "native", "reference"),
    )
    instruction_set: str = option(
        "auto",
        "instruction set of the native kernels; auto: the best of the processor",
        kind.choice(
            "auto",
            *("portable", "avx2", "avx512", "avx512_vnni", "avx512_bf16", "amx"),
            *("neon", "neon_dotprod", "neon_i8mm_bf16"),
        ),
    )
    arithmetic: str = option(
        "auto",
        "order of the sums beside bfloat16 and int8; vectors: that of every instruction set but AMX, for the "
        "same bytes on all of them; auto: the fastest",
        kind.choice("auto", "vectors"),
    )
    verbose: bool = option(
        False, "show the messages of MindSpore and MindFormers, tracebacks, requests to a server"
    )


def batch_error(model: ModelConfig, runtime: RuntimeConfig) -> str | None:
    """Explains why the requested batch does not fit in a step; the default batch size is lowered instead."""
    if not 0 < runtime.max_batched_tokens < model.batch_size != DEFAULT_BATCH_SIZE:
        return None
    return (
        f"runtime.max_batched_tokens={runtime.max_batched_tokens}: must be at least "
        f"model.batch_size={model.batch_size}, for each sequence takes one token of a step"
    )


def ignored_keys(model: ModelConfig) -> IgnoredKeys:
    """Returns the keys of config.json to ignore; with an assistant, each may be in either of two files."""
    return IgnoredKeys(tuple(model.ignore_config_keys), may_lack=model.assistant is not None)
