"""The keys of every task that runs a model: the model, decoding, parallelism and the device."""

from dataclasses import dataclass
from typing import Any

from mindbatch.config.schema_fields import TaskConfig, option, section


@dataclass
class ModelConfig:
    """Which model, and how it is held."""

    type: str = option(
        "auto",
        "architecture; auto reads it from the folder's config.json",
        choices=("auto", "gpt2", "llama", "minimind", "mistral", "qwen2", "qwen3"),
    )
    checkpoint_name_or_path: str | None = option(
        None, "Hugging Face folder: config.json, safetensors, tokenizer files", is_path=True
    )
    provider: str = option("native", "who runs the model", choices=("native", "mindformers"))
    use_past: bool = option(True, "keep keys and values of past tokens; false recomputes them at every step")
    batch_size: int = option(8, "largest number of sequences in one step", minimum=1)
    seq_length: int | None = option(
        None, "longest prompt + output, in tokens; null: the model's own", minimum=1
    )
    dtype: str = option(
        "auto",
        "type of weights and arithmetic; auto is float32 on CPU, where the half types are refused",
        choices=("auto", "float32", "float16", "bfloat16"),
    )
    tokenizer: str | None = option(None, "folder of the tokenizer; null: the model's folder", is_path=True)


@dataclass
class DecodingConfig:
    """How the next token is chosen and when a row ends."""

    do_sample: bool = option(False, "draw at random; false takes the most likely token")
    temperature: float = option(1.0, "divides the logits; 0 is greedy")
    top_k: int = option(0, "keep the k most likely tokens; 0: off")
    top_p: float = option(1.0, "keep the smallest set holding this probability; 1: off")
    min_p: float = option(0.0, "drop tokens below this share of the most likely one; 0: off")
    repetition_penalty: float = option(1.0, "above 1 makes tokens already seen less likely; 1: off")
    max_length: int | None = option(None, "longest prompt + output, in tokens")
    max_new_tokens: int | None = option(None, "longest output, in tokens; null with max_length=null: 128")
    min_length: int = option(0, "shortest prompt + output before an end token may come")
    min_new_tokens: int = option(0, "shortest output before an end token may come")
    num_return_sequences: int = option(1, "samples for each prompt")
    seed: int = option(0, "of the random draws; the same seed and prompt give the same text")
    stop: Any = option((), "texts that end the output; they are cut off it", accepts="text or list of texts")
    eos_token_id: Any = option(
        None, "end tokens; null: the model's own; []: none", accepts="token id, list of token ids or null"
    )
    logprobs: int | None = option(None, "log-probabilities of the chosen token and of the top k")
    prompt_logprobs: int | None = option(None, "the same for the prompt's own tokens")
    skip_special_tokens: bool = option(True, "leave special tokens out of the text")


@dataclass
class ParallelConfig:
    """How many processes share the work."""

    data_parallel: int = option(1, "copies of the model; each takes a share of the rows", minimum=1)
    model_parallel: int = option(1, "slices of every layer; must divide the attention heads", minimum=1)
    pipeline_stage: int = option(1, "groups of successive layers", minimum=1)


@dataclass
class RuntimeConfig:
    """The device and its memory."""

    device_target: str = option("CPU", "where the model runs", choices=("CPU", "Ascend"))
    num_threads: int | None = option(None, "threads of the kernels; null: one for each core", minimum=1)
    cache_memory: str = option("1GiB", "budget of the key/value cache: 512MB, 1.5GiB or plain bytes")
    block_size: int = option(
        16,
        "tokens in a block of the cache; few waste less of it, many are found faster",
        choices=(8, 16, 32, 64, 128),
    )
    max_batched_tokens: int = option(512, "most tokens in one step, prompts included", minimum=1)
    prefix_caching: bool = option(
        True, "compute a beginning that prompts share once and keep it in the cache"
    )
    kernels: str = option(
        "auto",
        "attention kernels; auto takes the native ones when they are built",
        choices=("auto", "native", "reference"),
    )
    verbose: bool = option(False, "show the messages of MindSpore and MindFormers, and tracebacks")


@dataclass
class ModelTaskConfig(TaskConfig):
    """The sections of every task that runs a model."""

    model: ModelConfig = section(ModelConfig)
    decoding: DecodingConfig = section(DecodingConfig)
    parallel: ParallelConfig = section(ParallelConfig)
    runtime: RuntimeConfig = section(RuntimeConfig)

    @property
    def wants_verbose(self) -> bool:
        return self.runtime.verbose

    @property
    def thread_count(self) -> int | None:
        return self.runtime.num_threads
