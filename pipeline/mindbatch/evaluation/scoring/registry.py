"""The metrics by their names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mindbatch.evaluation.scoring.generated import (
    Distinct1,
    Distinct2,
    Distinct3,
    OutputLogprob,
    OutputPerplexity,
    Repetition,
    SelfBleu,
    TokenLogprob,
)
from mindbatch.evaluation.scoring.instructions import InstructionsFollowed, PromptsFollowed
from mindbatch.evaluation.scoring.likelihood import (
    Accuracy,
    BitsPerByte,
    BytePerplexity,
    NormalisedAccuracy,
    Perplexity,
    WordPerplexity,
)
from mindbatch.evaluation.scoring.matching import (
    Bleu,
    ChineseBleu,
    ExactMatch,
    QuasiExactMatch,
    Rouge1,
    Rouge2,
    RougeL,
    WordF1,
)
from mindbatch.evaluation.scoring.metric import Metric

_ALL: tuple[type[Metric[Any]], ...] = (
    ExactMatch,
    QuasiExactMatch,
    WordF1,
    Bleu,
    ChineseBleu,
    Rouge1,
    Rouge2,
    RougeL,
    PromptsFollowed,
    InstructionsFollowed,
    Accuracy,
    NormalisedAccuracy,
    Perplexity,
    WordPerplexity,
    BytePerplexity,
    BitsPerByte,
    OutputPerplexity,
    OutputLogprob,
    TokenLogprob,
    Distinct1,
    Distinct2,
    Distinct3,
    SelfBleu,
    Repetition,
)
METRICS: Mapping[str, Metric[Any]] = {metric.name: metric() for metric in _ALL}
