"""The typed schemas of every task: each key with its type, default, meaning and allowed range."""

from dataclasses import dataclass, field
from typing import Any

LARGEST_COUNT = 2**31 - 1


def option(
    default: Any,
    meaning: str,
    *,
    choices: tuple[Any, ...] = (),
    minimum: int | None = None,
    accepts: str = "",
) -> Any:  # Any, as `dataclasses.field` has it: the annotation of the class attribute is the type
    """A field whose one-line `meaning` is its documentation; `choices` and `minimum` are checked.

    `accepts` says what may be given where the type is Any.
    """
    metadata = {"meaning": meaning, "choices": choices, "minimum": minimum, "accepts": accepts}
    return field(default=default, metadata=metadata)


def section(schema: type) -> Any:
    """A nested group of keys; the docstring of `schema` is its meaning."""
    return field(default_factory=schema)


class TaskConfig:
    """What the composed configuration of every task carries besides its keys."""

    # Not annotated: a dataclass field would become a key that users could set.
    unresolved_yaml = ""

    @property
    def wants_verbose(self) -> bool:
        """Whether the user asked for the messages of MindSpore and MindFormers and for tracebacks."""
        raise NotImplementedError

    @property
    def thread_count(self) -> int | None:
        """Threads asked for; None leaves the choice to the machine."""
        return None


@dataclass
class ModelConfig:
    """Which model, and how it is held."""

    type: str = option(
        "auto",
        "architecture; auto reads it from the folder's config.json",
        choices=("auto", "gpt2", "llama", "minimind", "mistral", "qwen2", "qwen3"),
    )
    checkpoint_name_or_path: str | None = option(
        None, "Hugging Face folder: config.json, safetensors, tokenizer files"
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
    tokenizer: str | None = option(None, "folder of the tokenizer; null: the model's folder")


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
    block_size: int = option(16, "tokens in a block of the cache", choices=(16, 32, 64, 128))
    max_batched_tokens: int = option(512, "most tokens in one step, prompts included", minimum=1)
    kernels: str = option(
        "auto",
        "attention kernels; auto takes the native ones when they are built",
        choices=("auto", "native", "reference"),
    )
    verbose: bool = option(False, "show the messages of MindSpore and MindFormers, and tracebacks")


@dataclass
class OutputConfig:
    """Where the generations go."""

    format: str = option("text", "text, or json with token ids and timings", choices=("text", "json"))
    file: str | None = option(None, "file to write; null: standard output")


@dataclass
class GenerateConfig(TaskConfig):
    """The keys of `mindbatch generate`."""

    model: ModelConfig = section(ModelConfig)
    decoding: DecodingConfig = section(DecodingConfig)
    parallel: ParallelConfig = section(ParallelConfig)
    runtime: RuntimeConfig = section(RuntimeConfig)
    output: OutputConfig = section(OutputConfig)
    prompts: Any = option(
        None,
        "what to continue; a prompt is a text or a list of token ids",
        accepts="prompt, list of prompts or null",
    )
    prompts_file: str | None = option(None, "file with a prompt on each line; - is standard input")
    messages: Any = option(
        None, "chats, each a list like [{role: user, content: Hi}]", accepts="chat, list of chats or null"
    )
    chat: bool = option(False, "send each prompt as a user's message through the chat template")
    system: str | None = option(None, "system message put before each prompt; needs chat=true or messages")
    stream: bool = option(False, "print the text token by token")
    interactive: bool = option(False, "keep asking for prompts")

    @property
    def wants_verbose(self) -> bool:
        return self.runtime.verbose

    @property
    def thread_count(self) -> int | None:
        return self.runtime.num_threads


@dataclass
class DoctorConfig(TaskConfig):
    """The keys of `mindbatch doctor`."""

    format: str = option("text", "text or json", choices=("text", "json"))
    verbose: bool = option(False, "show the messages of MindSpore, and tracebacks")

    @property
    def wants_verbose(self) -> bool:
        return self.verbose


SCHEMAS: dict[str, type[TaskConfig]] = {"generate": GenerateConfig, "doctor": DoctorConfig}
