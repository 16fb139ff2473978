"""The metrics by their names: help and checks need no more of them, neither NumPy nor libraries."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mindbatch.evaluation.scoring.metric import Metric

_CLASSES = {
    "exact_match": "matching:ExactMatch",
    "squad_em": "matching:QuasiExactMatch",
    "f1": "matching:WordF1",
    "bleu": "matching:Bleu",
    "bleu_zh": "matching:ChineseBleu",
    "rouge1": "matching:Rouge1",
    "rouge2": "matching:Rouge2",
    "rougeL": "matching:RougeL",
    "prompt_level_strict_acc": "instructions:PromptsFollowed",
    "inst_level_strict_acc": "instructions:InstructionsFollowed",
    "acc": "likelihood:Accuracy",
    "acc_norm": "likelihood:NormalisedAccuracy",
    "perplexity": "likelihood:Perplexity",
    "word_perplexity": "likelihood:WordPerplexity",
    "byte_perplexity": "likelihood:BytePerplexity",
    "bits_per_byte": "likelihood:BitsPerByte",
    "output_perplexity": "generated:OutputPerplexity",
    "output_logprob": "generated:OutputLogprob",
    "token_logprob": "generated:TokenLogprob",
    "distinct_1": "generated:Distinct1",
    "distinct_2": "generated:Distinct2",
    "distinct_3": "generated:Distinct3",
    "self_bleu": "generated:SelfBleu",
    "repetition": "generated:Repetition",
}
METRIC_NAMES = (*_CLASSES,)
REFERENCE_FREE = METRIC_NAMES[METRIC_NAMES.index("output_perplexity") :]
"""The metrics of generated texts by themselves, which need no right answers."""


@cache
def metric_of(name: str) -> Metric[Any]:
    """One of METRIC_NAMES."""
    module, kind = _CLASSES[name].split(":")
    metric: Metric[Any] = getattr(import_module(f"mindbatch.evaluation.scoring.{module}"), kind)()
    metric.name = name
    return metric
