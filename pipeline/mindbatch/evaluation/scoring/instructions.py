"""Instructions that a program can verify, some of those of IFEval.

Zhou et al. 2023, "Instruction-Following Evaluation for Large Language Models", https://arxiv.org/abs/2311.07911.
"""

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
    """An instruction as a reference of an answer.

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


class PromptsFollowed(MeanMetric[Answer]):
    """The share of answers that follow all of their instructions."""

    title = "Instructions followed, prompts"
    needs = "generation"
    is_right_or_wrong = True

    def score(self, sample: Answer) -> float:
        return float(all(followed(sample)))


class InstructionsFollowed(Metric[Answer]):
    """The share of instructions that answers follow."""

    title = "Instructions followed"
    needs = "generation"

    def sums(self, sample: Answer) -> tuple[float, ...]:
        follows = followed(sample)
        return float(sum(follows)), float(len(follows))
