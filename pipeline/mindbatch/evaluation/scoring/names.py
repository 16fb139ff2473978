"""The names of metrics and extractions: help and checks need no more of them, neither NumPy nor libraries."""

METRIC_NAMES = (
    "exact_match",
    "squad_em",
    "f1",
    "bleu",
    "bleu_zh",
    "rouge1",
    "rouge2",
    "rougeL",
    "prompt_level_strict_acc",
    "inst_level_strict_acc",
    "acc",
    "acc_norm",
    "perplexity",
    "word_perplexity",
    "byte_perplexity",
    "bits_per_byte",
    "output_perplexity",
    "output_logprob",
    "token_logprob",
    "distinct_1",
    "distinct_2",
    "distinct_3",
    "self_bleu",
    "repetition",
)
REFERENCE_FREE = METRIC_NAMES[METRIC_NAMES.index("output_perplexity") :]
"""The metrics of generated texts by themselves, which need no right answers."""
EXTRACTION_NAMES = ("text", "first_line", "number", "gsm8k", "letter")
