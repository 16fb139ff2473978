"""An assistant with another vocabulary is refused by name."""

from pathlib import Path

import pytest

from mindbatch.io.errors import ConfigError
from mindbatch.loading.providers import refuse_unfit

LARGE, SMALL = Path("/models/large"), Path("/models/small")
WORDS = {"a": 0, "b": 1, "c": 2}


@pytest.mark.parametrize("pair", [(WORDS, dict(WORDS)), (WORDS, None), (None, WORDS), (None, None)])
def test_equal_vocabularies_are_fit(pair: tuple[dict[str, int] | None, dict[str, int] | None]) -> None:
    refuse_unfit(LARGE, SMALL, (3, 3), pair)


def test_sizes_must_be_equal() -> None:
    with pytest.raises(ConfigError) as caught:
        refuse_unfit(LARGE, SMALL, (3, 5), (None, None))
    assert str(caught.value) == (
        "model.assistant=/models/small: its vocabulary has 5 tokens and that of /models/large has 3; "
        "an assistant must have the model's own vocabulary"
    )


@pytest.mark.parametrize(
    ("theirs", "said"),
    [
        ({"a": 0, "b": 2, "c": 1}, "2 tokens, such as 'b' (id 1 in the model, id 2 in the assistant)"),
        ({"a": 0, "b": 1, "d": 2}, "2 tokens, such as 'c' (id 2 in the model, unknown in the assistant)"),
        (
            {"a": 0, "b": 1, "c": 2, "d": 3},
            "1 tokens, such as 'd' (unknown in the model, id 3 in the assistant)",
        ),
    ],
)
def test_tokens_must_be_the_same(theirs: dict[str, int], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        refuse_unfit(LARGE, SMALL, (4, 4), (WORDS, theirs))
    message = str(caught.value)
    assert message.startswith(
        "model.assistant=/models/small: its tokenizer differs from that of /models/large in"
    )
    assert said in message
