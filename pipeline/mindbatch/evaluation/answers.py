"""Metrics of answers beside their references: texts (exact, F1, BLEU, ROUGE), or instructions to follow."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import orjson

from mindbatch.evaluation.metric import Answer, DoubleArray, Metric, by_sample, mean_metric, metric
from mindbatch.evaluation.texts import bleu_by, ngrams
from mindbatch.prompts.chinese_words import words_of

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_NO_LETTERS = re.compile(r"[^a-z0-9]+")
_HAN = re.compile(r"[\u3400-\u9fff\uf900-\ufaff]")
ORDERS = 4
"""Longest n-grams of BLEU."""


@mean_metric("Exact match", is_right_or_wrong=True)
def exact_match(sample: Answer) -> float:
    """The share of answers that are a reference, but for white space around them."""
    references = {reference.strip() for reference in sample.references}
    return float(sample.text is not None and sample.text.strip() in references)


@mean_metric("Exact match (SQuAD)", is_right_or_wrong=True)
def squad_em(sample: Answer) -> float:
    """The share of answers whose words are those of a reference, as SQuAD compares them.

    Rajpurkar et al. 2016, https://arxiv.org/abs/1606.05250: case, punctuation, articles and white space are
    left out.
    """
    return best_of(sample, lambda text, reference: float(words(text) == words(reference)))


@mean_metric("F1 of words")
def f1(sample: Answer) -> float:
    """The harmonic mean of precision and recall of an answer's words, of the best reference (SQuAD)."""
    return best_of(sample, lambda text, reference: _f1_of_words(words(text), words(reference)))


def best_of(row: Answer, score: Callable[[str, str], float]) -> float:
    """Scores an answer by the reference that it is nearest to; 0 without an answer."""
    if row.text is None:
        return 0.0
    return max((score(row.text, reference) for reference in row.references), default=0.0)


def words(text: str) -> list[str]:
    """Splits a text as SQuAD does: in small letters, without punctuation and English articles."""
    return _ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split()


def _f1_of_words(answer: Sequence[str], wanted: Sequence[str]) -> float:
    """2 P R / (P + R) of two bags of words; 1 of two that are empty, 0 where one is."""
    return _ngram_f1(1, answer, wanted) if answer or wanted else 1.0


def _bleu(name: str, title: str, meaning: str, tokenize: str) -> Metric:
    """BLEU of all answers together, 0 to 100: sacrebleu's.

    Papineni et al. 2002; Post 2018, "A Call for Clarity in Reporting BLEU Scores".
    """

    def sums(sample: Answer) -> Sequence[float]:
        references = [[reference] for reference in sample.references]
        score = bleu_by(tokenize).corpus_score([sample.text or ""], references)
        return [*map(float, [*score.counts, *score.totals, score.sys_len, score.ref_len])]

    def value(sums: DoubleArray) -> DoubleArray:
        return np.asarray(np.apply_along_axis(value_of_one, -1, sums))

    def value_of_one(sums: DoubleArray) -> float:
        numbers = [int(number) for number in sums]
        right, all_of_them, (length, wanted) = numbers[:ORDERS], numbers[ORDERS:-2], numbers[-2:]
        score = bleu_by(tokenize).compute_bleu(right, all_of_them, length, wanted, smooth_method="exp")
        return float(score.score)

    return Metric(name, title, meaning, by_sample(sums), value, scale=100.0)


bleu = _bleu(
    "bleu",
    "BLEU",
    'BLEU of all answers together, 0 to 100: sacrebleu\'s, with words as "13a" divides them.',
    "13a",
)
bleu_zh = _bleu("bleu_zh", "BLEU (Chinese)", "BLEU with every Chinese character as a word.", "zh")


@mean_metric("ROUGE-1")
def rouge1(sample: Answer) -> float:
    """F1 of single words."""
    return _rouge(sample, partial(_ngram_f1, 1))


@mean_metric("ROUGE-2")
def rouge2(sample: Answer) -> float:
    """F1 of pairs of words."""
    return _rouge(sample, partial(_ngram_f1, 2))


@mean_metric("ROUGE-L")
def rougeL(sample: Answer) -> float:
    """F1 of the longest common subsequence."""
    return _rouge(
        sample, lambda answer, wanted: _harmonic(longest_common(answer, wanted), len(answer), len(wanted))
    )


def _rouge(sample: Answer, score: Callable[[Sequence[str], Sequence[str]], float]) -> float:
    """F1 of what answer and reference have in common; Lin 2004, "ROUGE: A Package for Automatic Evaluation".

    Words are runs of letters and digits in small letters, without stemming, as rouge-score has them by
    default; a Chinese text is divided by jieba, which is what reports on ADGEN do.
    """
    return best_of(sample, lambda text, reference: score(rouge_words(text), rouge_words(reference)))


def _ngram_f1(order: int, answer: Sequence[str], wanted: Sequence[str]) -> float:
    mine, theirs = (Counter(ngrams(words, order)) for words in (answer, wanted))
    return _harmonic((mine & theirs).total(), mine.total(), theirs.total())


def rouge_words(text: str) -> list[str]:
    """Splits a text into words in small letters; one with Chinese characters as jieba divides it."""
    if _HAN.search(text):
        return [word.lower() for word in words_of(text) if word.strip()]
    return [word for word in _NO_LETTERS.split(text.lower()) if word]


def longest_common(first: Sequence[str], second: Sequence[str]) -> int:
    lengths = [0] * (len(second) + 1)
    for word in first:
        diagonal = 0
        for position, other in enumerate(second, 1):
            above = lengths[position]
            lengths[position] = diagonal + 1 if word == other else max(above, lengths[position - 1])
            diagonal = above
    return lengths[-1]


def _harmonic(common: int, in_answer: int, wanted: int) -> float:
    """2 P R / (P + R), 0 where there is nothing to compare."""
    return 2 * common / (in_answer + wanted) if common else 0.0


InstructionCheck = Callable[[str, Mapping[str, Any]], bool]
"""(text, arguments) -> whether the text follows the instruction. KeyError, TypeError: bad arguments."""

_SENTENCE_END = re.compile(r"[.!?]+(?=\s|$)")
_BULLET = re.compile(r"^\s*[*-]\s+\S", re.MULTILINE)
_TITLE = re.compile(r"<<[^\n<>]*\S[^\n<>]*>>")
_PLACEHOLDER = re.compile(r"\[[^\[\]\n]+\]")


def _compared(count: int, arguments: Mapping[str, Any], wanted: str) -> bool:
    """`relation` is "at least" or "less than", as IFEval has it."""
    bound = int(arguments[wanted])
    return count < bound if arguments.get("relation") == "less than" else count >= bound


def _has_word(text: str, word: str) -> bool:
    return re.search(rf"\b{re.escape(word)}\b", text, re.IGNORECASE) is not None


def _is_json(text: str, arguments: Mapping[str, Any]) -> bool:
    bare = re.sub(r"^\s*```(?:json)?|```\s*$", "", text, flags=re.IGNORECASE)
    try:
        orjson.loads(bare)
    except orjson.JSONDecodeError:
        return False
    return True


CHECKS: Mapping[str, InstructionCheck] = {
    "keywords:existence": lambda text, arguments: all(
        _has_word(text, word) for word in arguments["keywords"]
    ),
    "keywords:forbidden_words": lambda text, arguments: (
        not any(_has_word(text, word) for word in arguments["forbidden_words"])
    ),
    "keywords:frequency": lambda text, arguments: _compared(
        len(re.findall(rf"\b{re.escape(arguments['keyword'])}\b", text, re.IGNORECASE)),
        arguments,
        "frequency",
    ),
    "keywords:letter_frequency": lambda text, arguments: _compared(
        text.lower().count(str(arguments["letter"]).lower()),
        {"relation": arguments.get("let_relation"), **arguments},
        "let_frequency",
    ),
    "length_constraints:number_words": lambda text, arguments: _compared(
        len(text.split()), arguments, "num_words"
    ),
    "length_constraints:number_sentences": lambda text, arguments: _compared(
        len(_SENTENCE_END.findall(text)), arguments, "num_sentences"
    ),
    "length_constraints:number_paragraphs": lambda text, arguments: (
        len([paragraph for paragraph in re.split(r"\s?\*\*\*\s?", text) if paragraph.strip()])
        == int(arguments["num_paragraphs"])
    ),
    "detectable_format:json_format": _is_json,
    "detectable_format:number_bullet_lists": lambda text, arguments: (
        len(_BULLET.findall(text)) == int(arguments["num_bullets"])
    ),
    "detectable_format:title": lambda text, arguments: _TITLE.search(text) is not None,
    "detectable_content:number_placeholders": lambda text, arguments: (
        len(_PLACEHOLDER.findall(text)) >= int(arguments["num_placeholders"])
    ),
    "change_case:english_lowercase": lambda text, arguments: text == text.lower(),
    "change_case:english_capital": lambda text, arguments: text == text.upper(),
    "punctuation:no_comma": lambda text, arguments: "," not in text,
    "startend:end_checker": lambda text, arguments: (
        text.strip().strip('"').lower().endswith(str(arguments["end_phrase"]).strip().lower())
    ),
    "startend:quotation": lambda text, arguments: (
        len(text.strip()) > 1 and text.strip()[:: len(text.strip()) - 1] == '""'
    ),
}


def instruction(name: str, arguments: Mapping[str, Any] | None) -> str:
    """Encodes an instruction as a reference of an answer.

    Raises:
        ValueError: it is none of CHECKS, or its arguments are not its.
    """
    arguments = {key: value for key, value in (arguments or {}).items() if value is not None}
    if name not in CHECKS:
        raise ValueError(f"instruction {name!r}: not verified here; there are {', '.join(CHECKS)}")
    try:
        CHECKS[name]("a", arguments)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"instruction {name!r}: its arguments {arguments!r} lack {error}") from None
    return orjson.dumps([name, arguments], option=orjson.OPT_SORT_KEYS).decode()


def followed(row: Answer) -> list[bool]:
    """Checks which of the instructions, the references of the row, its answer follows."""
    if not row.text or not row.text.strip():
        return [False] * len(row.references)
    parsed = [orjson.loads(reference) for reference in row.references]
    return [CHECKS[name](row.text, arguments) for name, arguments in parsed]


@mean_metric("Instructions followed, prompts", is_right_or_wrong=True)
def prompt_level_strict_acc(sample: Answer) -> float:
    """The share of answers that follow all of their instructions."""
    return float(all(followed(sample)))


@metric("Instructions followed")
def inst_level_strict_acc(sample: Answer) -> tuple[float, float]:
    """The share of instructions that answers follow."""
    follows = followed(sample)
    return float(sum(follows)), float(len(follows))
