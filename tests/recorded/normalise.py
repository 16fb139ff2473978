"""What may differ between two runs of one command, each by a rule with a name, which is recorded instead."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

NUMBER = r"[0-9]+(?:,[0-9]{3})*(?:\.[0-9]+)?(?:e-?[0-9]+)?"


@dataclass(frozen=True)
class Rule:
    """Replaces whatever a pattern's group `value` matches; where a rule ends, everything else is compared."""

    name: str
    pattern: re.Pattern[str]

    def apply(self, text: str) -> str:
        """The text with a name in place of each value."""
        return self.pattern.sub(self._named, text)

    def _named(self, match: re.Match[str]) -> str:
        start, end = match.span("value")
        begin = match.start()
        return f"{match.group()[: start - begin]}<{self.name}>{match.group()[end - begin :]}"


def _rule(name: str, pattern: str) -> Rule:
    return Rule(name, re.compile(pattern, re.MULTILINE))


def _json(keys: str, value: str = NUMBER) -> str:
    """A member of a JSON object, compact or indented."""
    return rf'"(?:{keys})": ?(?P<value>{value})'


RULES = (
    _rule("TIME", r"(?P<value>\b20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:\+00:00|Z))"),
    _rule("TIME", r"(?P<value>\b20\d\d-\d\d-\d\d \d\d:\d\d(?::\d\d)?) UTC"),
    _rule("DAY", _json("date", r'"20\d\d-\d\d-\d\d"')),
    _rule("UNIX TIME", _json("time|created", r"1[0-9]{9}(?:\.[0-9]+)?")),
    _rule("SECONDS", rf"\b(?:in|about) (?P<value>{NUMBER}) s\b"),
    _rule("SECONDS", _json("seconds|start_up_seconds|measured_seconds")),
    _rule("SECONDS", r'"timings": ?\[(?P<value>[^\]]*)\]'),
    _rule("SPEED", rf"(?P<value>{NUMBER}) tokens/s"),
    _rule("SPEED", _json("[a-z_]*_per_second", rf"{NUMBER}|\[[^\]]*\]")),
    _rule("PROCESS", _json("process|pid")),
    _rule("HOST", _json("host", r'"[^"]*"')),
    _rule("MODEL TYPES", r"\b(?P<value>apertus, bloom, (?:\w+, )+telechat3)\b"),
    _rule("KERNELS", _json("kernels", r'"(?!auto)[^"]*"')),
    _rule("CHECK", r'^\{"ledger":1,.*"kernels":.*"check":(?P<value>"[0-9a-f]{16}")'),
    # The check of run.json covers its times too.
    _rule("CHECK", r'"fingerprint": "[0-9a-f]{32}",\n  "check": (?P<value>"[0-9a-f]{16}")'),
)
PROGRESS = re.compile(r"^[0-9]+ of [0-9]+ rows done, [0-9]+ failed, prompt .*\n", re.MULTILINE)
"""A line of progress: there is one every so many seconds, so on a busy machine only."""
VERSIONS = _rule(
    "VERSION", r'^ +"(?:python|mindspore|mindformers|transformers|tokenizers|numpy)": (?P<value>"[^"]*")'
)
SAMPLES = Rule("SAMPLES", re.compile(r"\A(?P<value>(?:.*\n)*?)(?=.*\n\Z)"))
SAMPLED = _rule("SAMPLED", _json("cache_used|running|waiting"))

BY_NAME: Mapping[str, tuple[Rule, ...]] = {
    "versions": (VERSIONS,),
    "metrics": (SAMPLES, SAMPLED),
}
"""Rules for some files (`FILES`, by their names) or for the entries that ask for them."""
FILES: Mapping[str, str] = {
    "metrics.jsonl": "metrics",
    "manifest.json": "versions",
}


def normaliser(places: Mapping[str, str], rules: tuple[str, ...]) -> Callable[[str], str]:
    """A function over text. places: paths and what stands for them; rules: names of `BY_NAME`."""
    longest_first = sorted(places.items(), key=lambda place: -len(place[0]))
    chosen = (*RULES, *(rule for name in rules for rule in BY_NAME[name]))

    def normalise(text: str) -> str:
        for path, name in longest_first:
            text = text.replace(path, name)
        text = PROGRESS.sub("", text)
        for rule in chosen:
            text = rule.apply(text)
        return text

    return normalise
