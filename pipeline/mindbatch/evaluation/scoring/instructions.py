"""Instructions that a program can verify, some of those of IFEval.

Zhou et al. 2023, "Instruction-Following Evaluation for Large Language Models", https://arxiv.org/abs/2311.07911.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import orjson

from mindbatch.evaluation.scoring.metric import Answer, MeanMetric, Metric

Check = Callable[[str, Mapping[str, Any]], bool]
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


CHECKS: Mapping[str, Check] = {
    "keywords:existence": lambda text, given: all(_has_word(text, each) for each in given["keywords"]),
    "keywords:forbidden_words": lambda text, given: (
        not any(_has_word(text, each) for each in given["forbidden_words"])
    ),
    "keywords:frequency": lambda text, given: _compared(
        len(re.findall(rf"\b{re.escape(given['keyword'])}\b", text, re.IGNORECASE)), given, "frequency"
    ),
    "keywords:letter_frequency": lambda text, given: _compared(
        text.lower().count(str(given["letter"]).lower()),
        {"relation": given.get("let_relation"), **given},
        "let_frequency",
    ),
    "length_constraints:number_words": lambda text, given: _compared(len(text.split()), given, "num_words"),
    "length_constraints:number_sentences": lambda text, given: _compared(
        len(_SENTENCE_END.findall(text)), given, "num_sentences"
    ),
    "length_constraints:number_paragraphs": lambda text, given: (
        len([each for each in re.split(r"\s?\*\*\*\s?", text) if each.strip()])
        == int(given["num_paragraphs"])
    ),
    "detectable_format:json_format": _is_json,
    "detectable_format:number_bullet_lists": lambda text, given: (
        len(_BULLET.findall(text)) == int(given["num_bullets"])
    ),
    "detectable_format:title": lambda text, given: _TITLE.search(text) is not None,
    "detectable_content:number_placeholders": lambda text, given: (
        len(_PLACEHOLDER.findall(text)) >= int(given["num_placeholders"])
    ),
    "change_case:english_lowercase": lambda text, given: text == text.lower(),
    "change_case:english_capital": lambda text, given: text == text.upper(),
    "punctuation:no_comma": lambda text, given: "," not in text,
    "startend:end_checker": lambda text, given: (
        text.strip().strip('"').lower().endswith(str(given["end_phrase"]).strip().lower())
    ),
    "startend:quotation": lambda text, given: (
        len(text.strip()) > 1 and text.strip()[:: len(text.strip()) - 1] == '""'
    ),
}


def instruction(name: str, arguments: Mapping[str, Any] | None) -> str:
    """An instruction as a reference of an answer.

    Raises:
        ValueError: it is none of CHECKS, or its arguments are not its.
    """
    given = {key: value for key, value in (arguments or {}).items() if value is not None}
    if name not in CHECKS:
        raise ValueError(f"instruction {name!r}: not verified here; there are {', '.join(CHECKS)}")
    try:
        CHECKS[name]("a", given)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"instruction {name!r}: its arguments {given!r} lack {error}") from None
    return orjson.dumps([name, given], option=orjson.OPT_SORT_KEYS).decode()


def followed(row: Answer) -> list[bool]:
    """Checks which of the instructions, the references of the row, its answer follows."""
    if not row.text or not row.text.strip():
        return [False] * len(row.references)
    parsed = [orjson.loads(each) for each in row.references]
    return [CHECKS[name](row.text, given) for name, given in parsed]


class PromptsFollowed(MeanMetric[Answer]):
    """The share of answers that follow all of their instructions."""

    name = "prompt_level_strict_acc"
    title = "Instructions followed, prompts"
    needs = "generation"
    is_right_or_wrong = True

    def score(self, sample: Answer) -> float:
        return float(all(followed(sample)))


class InstructionsFollowed(Metric[Answer]):
    """The share of instructions that answers follow."""

    name = "inst_level_strict_acc"
    title = "Instructions followed"
    needs = "generation"

    def sums(self, sample: Answer) -> tuple[float, ...]:
        found = followed(sample)
        return float(sum(found)), float(len(found))
