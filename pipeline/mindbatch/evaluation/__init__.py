"""The metrics by their names: help and checks need no more of them, neither NumPy nor libraries."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mindbatch.evaluation.metric import Metric

_CLASSES = {
    "exact_match": "answers:ExactMatch",
    "squad_em": "answers:QuasiExactMatch",
    "f1": "answers:WordF1",
    "bleu": "answers:Bleu",
    "bleu_zh": "answers:ChineseBleu",
    "rouge1": "answers:Rouge1",
    "rouge2": "answers:Rouge2",
    "rougeL": "answers:RougeL",
    "prompt_level_strict_acc": "answers:PromptsFollowed",
    "inst_level_strict_acc": "answers:InstructionsFollowed",
    "acc": "texts:Accuracy",
    "acc_norm": "texts:NormalisedAccuracy",
    "perplexity": "texts:Perplexity",
    "word_perplexity": "texts:WordPerplexity",
    "byte_perplexity": "texts:BytePerplexity",
    "bits_per_byte": "texts:BitsPerByte",
    "output_perplexity": "texts:OutputPerplexity",
    "output_logprob": "texts:OutputLogprob",
    "token_logprob": "texts:TokenLogprob",
    "distinct_1": "texts:Distinct1",
    "distinct_2": "texts:Distinct2",
    "distinct_3": "texts:Distinct3",
    "self_bleu": "texts:SelfBleu",
    "repetition": "texts:Repetition",
}
METRIC_NAMES = (*_CLASSES,)
REFERENCE_FREE = METRIC_NAMES[METRIC_NAMES.index("output_perplexity") :]
"""The metrics of generated texts by themselves, which need no right answers."""


@cache
def metric_of(name: str) -> Metric[Any]:
    """One of METRIC_NAMES."""
    module, kind = _CLASSES[name].split(":")
    metric: Metric[Any] = getattr(import_module(f"mindbatch.evaluation.{module}"), kind)()
    metric.name = name
    return metric
