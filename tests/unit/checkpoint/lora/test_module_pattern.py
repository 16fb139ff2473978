"""Regular expressions of adapters: what `re` says, in bounded time."""

from __future__ import annotations

import re
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mindbatch.checkpoint.lora.targets import ModulePattern

NAMES = (
    "model.layers.0.self_attn.q_proj",
    "transformer.h.10.attn.c_attn",
    "lm_head",
    "model.embed_tokens",
    "a",
    "",
    "aa.b",
)
PATTERNS = (
    r".*\.(q|v)_proj",
    r"^(?!.*visual).*(q_proj|c_attn)$",
    r"(?:.*?(?:text|h).*?)|(?:\bmodel\.layers\.[\d]{1,}\..*)",
    r"a*?a",
    r"[^.]*",
    r"(a|aa)+\.b",
    r"lm_head|.*q_proj",
    r"(?<=x)a|a",
    r"(?<!a)a\.b",
    r".{3,7}",
    r"(a?){5}",
    r"(?:a|b)*c?",
    r"\w+",
    r"\bmodel(?=\.).*\B\w",
    r"[^\W\d]+|\D*\S",
    r"x??",
    r"(?!)",
    r"\Aa\Z",
    r"[a-m.]+",
    r"[^a]{2}.*\s*",
    r"(?i:MODEL)\..*|(?i:LM)_head",
    r"(?P<first>a)(?P=first)\.b",
)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_what_re_says(pattern: str) -> None:
    """Whole names, beginnings, and ends after a dot as PEFT's rank_pattern has them."""
    for name in NAMES:
        found = ModulePattern(pattern)
        assert found.matches(name) == bool(re.fullmatch(pattern, name)), name
        assert found.matches_start(name) == bool(re.match(pattern, name)), name
        assert found.matches_end(name) == bool(re.match(rf"(.*\.)?({pattern})$", name)), name


@given(
    parts=st.lists(
        st.sampled_from(["a", "b", ".", "(a|b)", "a*", "(ab)?", "[^a]", "b{1,2}", "(?=a)", r"\.", "(?!b)"]),
        max_size=6,
    ),
    name=st.text("ab.", max_size=8),
)
def test_any_expression_of_these(parts: list[str], name: str) -> None:
    pattern = "".join(parts)
    assert ModulePattern(pattern).matches(name) == bool(re.fullmatch(pattern, name))


@pytest.mark.parametrize(
    "pattern", [r"(((a+)+)+)+b", r"(a|a)*(a|a)*(a|a)*b", r"(?=(a*)*b)a*", ".*" * 200 + "b"]
)
def test_what_hangs_re_does_not_hang(pattern: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mindbatch.checkpoint.lora.targets.MOST_SECONDS", 1.0)
    assert not ModulePattern(pattern).matches("a" * 500)


def test_time_is_counted_over_all_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mindbatch.checkpoint.lora.targets.MOST_SECONDS", 0.1)
    slow = ModulePattern("(a?){400}")
    with pytest.raises(ValueError, match="takes too long"):
        _ = [slow.matches("a" * length) for length in range(500, 1000)]


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("(", "is no regular expression"),
        ("a{99999999999}", "repeats too often"),
        ("((a{200}){200}){200}", "repeats too often"),
        ("(?R)", "is no regular expression"),
        ("(?:lm_head){e<=2}", "has '{'"),
        ("[[:alpha:]]", "has '\\[:'"),
        (" " * 20000, "has 20000 characters"),
    ],
    ids=range(7),
)
def test_what_is_refused(pattern: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ModulePattern(pattern)


def test_deep_nesting_is_refused() -> None:
    """Whatever limit another test has left."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(1000)
    try:
        with pytest.raises(ValueError, match="nested too deeply"):
            ModulePattern("(" * 3000 + ")" * 3000)
    finally:
        sys.setrecursionlimit(limit)
