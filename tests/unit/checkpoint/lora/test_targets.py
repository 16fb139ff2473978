"""Which modules an adapter means: the rules of PEFT, worked out by hand."""

from __future__ import annotations

import re
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mindbatch.checkpoint.lora.config import LoraSettings, _patterns
from mindbatch.checkpoint.lora.targets import ModulePattern, targets_of

MODULES = (
    "model.embed_tokens",
    "model.layers.0.self_attn.q_proj",
    "model.layers.1.self_attn.q_proj",
    "model.layers.1.mlp.up_proj",
    "model.layers.11.mlp.experts.1.up_proj",
    "model.xlayers.1.up_proj",
    "lm_head",
)
EMBED, Q0, Q1, UP1, EXPERT, OTHER, HEAD = MODULES


@pytest.mark.parametrize(
    ("settings", "meant"),
    [
        ({"target_modules": ["q_proj"]}, {Q0, Q1}),
        ({"target_modules": ["proj", "layers.1.self_attn.q_proj"]}, {Q1}),
        ({"target_modules": ["lm_head", "embed_tokens"]}, {HEAD, EMBED}),
        ({"target_modules": [".*q_proj"]}, {Q0, Q1}),
        ({"target_modules": "q_proj", "peft_type": "LORA"}, set()),
        ({"target_modules": "q_proj|up"}, {Q0, Q1, UP1, EXPERT, OTHER}),
        ({"target_modules": r".*\.1\..*"}, {Q1, UP1, EXPERT, OTHER}),
        (
            {"target_modules": ["q_proj", "up_proj"], "exclude_modules": ["layers.1.self_attn.q_proj"]},
            {Q0, UP1, EXPERT, OTHER},
        ),
        ({"target_modules": ["q_proj"], "exclude_modules": r".*\.0\..*"}, {Q1}),
        ({"target_modules": ["q_proj", "lm_head"], "modules_to_save": ["lm_head"]}, {Q0, Q1}),
        ({"target_modules": ["up_proj"], "layers_to_transform": 1}, {UP1, OTHER}),
        ({"target_modules": ["up_proj"], "layers_to_transform": [1], "layers_pattern": "layers"}, {UP1}),
        (
            {"target_modules": ["up_proj"], "layers_to_transform": [1, 11], "layers_pattern": ["layers"]},
            {UP1, EXPERT},
        ),
        ({"target_modules": ["up_proj"], "layers_to_transform": []}, {UP1, EXPERT, OTHER}),
        ({"target_modules": ["q_proj", "lm_head"], "layers_to_transform": [0]}, {Q0, HEAD}),
        ({"target_modules": "all-linear"}, set()),
        ({}, set()),
    ],
    ids=lambda value: str(sorted(value)) if isinstance(value, set) else str(value),
)
def test_the_modules_that_are_meant(settings: dict[str, Any], meant: set[str]) -> None:
    """A module that is named in full is meant in whatever layer it is."""
    targets = targets_of(settings, [])
    assert {module for module in MODULES if targets.meant_by(module)} == meant


def test_rank_and_scaling_of_a_module() -> None:
    """The first expression that matches the end of the name counts."""
    content = {
        "rank_pattern": {"q_proj": 2, r"layers\.1\..*": 8, "proj": 99},
        "alpha_pattern": {r"^model\.layers\.1\..*": 4, "embed_tokens": 5},
    }
    ranks, alphas = (_patterns(content, key, []) for key in content)
    settings = LoraSettings(16, 32.0, ranks=ranks, alphas=alphas)
    found = {module: (settings.rank_of(module), settings.scaling_of(module)) for module in MODULES}
    assert found == {
        EMBED: (16, 5 / 16),
        Q0: (2, 16.0),
        Q1: (2, 2.0),
        UP1: (8, 0.5),
        EXPERT: (16, 2.0),
        OTHER: (16, 2.0),
        HEAD: (16, 2.0),
    }
    stabilised = LoraSettings(16, 32.0, rank_stabilised=True, ranks=ranks)
    assert stabilised.scaling_of(HEAD) == 8.0
    assert LoraSettings(16, 0.0, uniform_scaling=3.0, ranks=ranks).scaling_of(Q0) == 3.0


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
    monkeypatch.setattr("mindbatch.checkpoint.lora.targets.MAX_SECONDS", 1.0)
    assert not ModulePattern(pattern).matches("a" * 500)


def test_time_is_counted_over_all_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mindbatch.checkpoint.lora.targets.MAX_SECONDS", 0.1)
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
