"""What transformers decoded (fixtures/decoding_*.json.xz, made by makers/make_decoding_fixtures.py)."""

import json
import lzma
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

FIXTURES = Path(__file__).parent / "fixtures"
SETS = ("main", "group_beam", "contrastive")
_UNNAMED = {"max_new_tokens", "eos_token_id", "num_return_sequences"}


@dataclass(frozen=True)
class Case:
    """A prompt with its parameters, named as DecodingParams names them, and what must come out.

    outputs: token ids of each returned sequence, an end token included.
    scores: of each; None where nothing is ranked.
    any_end: the last tokens may be other end tokens than these.
    """

    name: str
    model: str
    kind: str
    prompt: list[int]
    params: dict[str, Any]
    outputs: list[list[int]]
    scores: list[float] | None
    any_end: bool

    def comparable(self, tokens: list[int]) -> list[int]:
        """The tokens, with one end token for all where it may be any."""
        ends = self.params.get("eos_token_id", []) if self.any_end else []
        return [*tokens[:-1], ends[0]] if tokens and tokens[-1] in ends else tokens


@lru_cache(maxsize=1)
def decoding_cases() -> tuple[Case, ...]:
    """All cases; each name tells the model, a number and the parameters."""
    found = []
    for name in SETS:
        content = json.loads(lzma.decompress((FIXTURES / f"decoding_{name}.json.xz").read_bytes()))
        found += [_case(len(found) + place, **case) for place, case in enumerate(content["cases"])]
    return tuple(found)


def _case(
    number: int,
    *,
    model: str,
    kind: str,
    params: dict[str, Any],
    gap: float,
    any_end: bool = False,
    **given: Any,
) -> Case:
    shown = [
        name if isinstance(value, list) else f"{name}={value}"
        for name, value in params.items()
        if name not in _UNNAMED
    ]
    name = "-".join([model, str(number), kind, *shown])
    return Case(name=name, model=model, kind=kind, params=params, any_end=any_end, **given)
