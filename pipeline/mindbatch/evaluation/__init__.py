"""The metrics by their names: help and checks need no more of them, neither NumPy nor libraries."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mindbatch.evaluation.metric import Metric

_OF_ANSWERS = (
    *("exact_match", "squad_em", "f1", "bleu", "bleu_zh", "rouge1", "rouge2", "rougeL"),
    *("prompt_level_strict_acc", "inst_level_strict_acc"),
)
REFERENCE_FREE = (
    *("output_perplexity", "output_logprob", "token_logprob"),
    *("distinct_1", "distinct_2", "distinct_3", "self_bleu", "repetition"),
)
"""The metrics of generated texts by themselves, which need no right answers."""
METRIC_NAMES = (
    *_OF_ANSWERS,
    *("acc", "acc_norm", "perplexity", "word_perplexity", "byte_perplexity", "bits_per_byte"),
    *REFERENCE_FREE,
)


def metric_of(name: str) -> Metric:
    """Imports a metric of METRIC_NAMES."""
    module = import_module(f"mindbatch.evaluation.{'answers' if name in _OF_ANSWERS else 'texts'}")
    metric: Metric = getattr(module, name)
    return metric
