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
)
EXTRACTION_NAMES = ("text", "first_line", "number", "gsm8k", "letter")
