"""The sections that tasks which run a model share: the model, decoding, parallelism and the device."""

from dataclasses import dataclass
from typing import Any

from mindbatch.config.schema import option
from mindbatch.models.registry import MODEL_TYPES

KEY_LIST = "list of keys"


@dataclass
class ModelConfig:
    """Which model, and how it is held."""

    type: str = option(
        "auto",
        "architecture; auto reads it from the folder's config.json",
        choices=("auto", *MODEL_TYPES),
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
    assistant: str | None = option(
        None, "folder of a smaller model that drafts tokens for speculative decoding", is_path=True
    )
    ignore_config_keys: Any = option(
        (), "keys of config.json that change nothing, though MindBatch does not know them", accepts=KEY_LIST
    )


@dataclass
class DecodingConfig:
    """How the next token is chosen and when a row ends."""

    do_sample: bool = option(False, "draw at random; false takes the most likely token", topic="Sampling")
    temperature: float = option(1.0, "divides the logits; 0 is greedy")
    top_k: int = option(0, "keep the k most likely tokens; 0: off. Contrastive search chooses among them")
    top_p: float = option(1.0, "keep the smallest set holding this probability; 1: off")
    min_p: float = option(0.0, "drop tokens below this share of the most likely one; 0: off")
    top_h: float = option(1.0, "keep the likeliest tokens up to this share of the entropy; 1: off")
    typical_p: float = option(1.0, "keep the most typical tokens up to this probability; 1: off")
    epsilon_cutoff: float = option(0.0, "drop tokens less likely than this; 0: off")
    eta_cutoff: float = option(0.0, "the same with a bound that falls with the entropy; 0: off")
    seed: int = option(0, "of the random draws; the same seed and prompt give the same text")
    num_beams: int = option(
        1,
        "hypotheses that beam search keeps; 1: no beam search",
        topic="Searches: beams, contrastive, ranking",
    )
    num_beam_groups: int = option(1, "groups of beams that are pushed apart; must divide num_beams; 1: off")
    diversity_penalty: float = option(
        0.0, "off a token's score for each beam of earlier groups that chose it"
    )
    length_penalty: float = option(1.0, "of beams and candidates: above 0 favours long outputs")
    early_stopping: Any = option(
        False,
        "beam search ends at num_beams finished, or (false, never) when better ones are unlikely, impossible",
        accepts="true, false or never",
    )
    penalty_alpha: float = option(0.0, "contrastive search among top_k tokens: weight of its penalty; 0: off")
    best_of: int | None = option(None, "sample-and-rank: candidates to sample; the best are returned")
    num_assistant_tokens: int = option(
        0, "tokens that model.assistant drafts for each step; 0: off", topic="Speculative decoding"
    )
    prompt_lookup_num_tokens: int = option(0, "tokens drafted from the text so far, for each step; 0: off")
    max_matching_ngram_size: int = option(2, "longest n-gram that prompt lookup searches for")
    repetition_penalty: float = option(
        1.0, "above 1 makes tokens already seen less likely; 1: off", topic="Penalties, biases and bans"
    )
    encoder_repetition_penalty: float = option(1.0, "above 1 makes the prompt's tokens likelier; 1: off")
    frequency_penalty: float = option(0.0, "off a token's logit for each time it was generated")
    presence_penalty: float = option(0.0, "off a token's logit once it was generated")
    no_repeat_ngram_size: int = option(0, "no n-gram of this length comes twice; 0: off")
    encoder_no_repeat_ngram_size: int = option(
        0, "no n-gram of this length of the prompt comes in the output; 0: off"
    )
    bad_words_ids: Any = option((), "token sequences that never come", accepts="list of lists of token ids")
    sequence_bias: Any = option(
        (), "added to the score of a token that ends a sequence", accepts="list of [token ids, bias]"
    )
    logit_bias: Any = option(None, "added to logits", accepts="mapping from token ids to biases, or null")
    suppress_tokens: Any = option((), "tokens that never come", accepts="list of token ids")
    begin_suppress_tokens: Any = option((), "tokens that never come first", accepts="list of token ids")
    forced_bos_token_id: int | None = option(None, "the output's first token")
    forced_eos_token_id: Any = option(
        None, "tokens allowed at the length limit", accepts="token id, list of token ids or null"
    )
    exponential_decay_length_penalty: Any = option(
        None, "raises end tokens by factor**n, n tokens past start", accepts="[start, factor] or null"
    )
    renormalize_logits: bool = option(False, "make the scores log-probabilities again after all of these")
    regex: str | None = option(
        None, "regular expression that the output must match", topic="Constrained output"
    )
    json_schema: Any = option(
        None, "JSON schema that the output must follow", accepts="schema, its text or null"
    )
    max_length: int | None = option(None, "longest prompt + output, in tokens", topic="Lengths and ends")
    max_new_tokens: int | None = option(None, "longest output, in tokens; null with max_length=null: 128")
    min_length: int = option(0, "shortest prompt + output before an end token may come")
    min_new_tokens: int = option(0, "shortest output before an end token may come")
    stop: Any = option((), "texts that end the output; they are cut off it", accepts="text or list of texts")
    eos_token_id: Any = option(
        None, "end tokens; null: the model's own; []: none", accepts="token id, list of token ids or null"
    )
    num_return_sequences: int = option(
        1, "samples for each prompt, or hypotheses of a search", topic="What is returned"
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
