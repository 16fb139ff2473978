"""Texts that go through Hydra's grammar and OmegaConf's references as they are."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mindbatch.config.compose import compose_task
from mindbatch.io.fault_lines import text_override, texts_override
from mindbatch.tasks.registry import TASKS

CHARACTERS = st.text(st.sampled_from("\\\"'${}[](),:=#;`*?-~ \n\r\ta1é\u2028\0"), max_size=12)


def composed(*overrides: str) -> tuple[object, object]:
    """The values of `system` and `prompts`."""
    config = compose_task(
        TASKS["generate"], ["model=tiny_gpt2", "chat=true", *overrides], None, None
    ).finish()
    return config.system, config.prompts  # type: ignore[attr-defined]


@given(CHARACTERS, CHARACTERS)
@example("${oc.env:HOME}", "${oc.env:HOME}\\")
@example("\\${x}", "\\\\${x} and a\\b")
@example("null", "true")
@example('"q"', "[1, 2]")
@example(" a ", "$(touch x); `y`")
@example("back\\", '\\"')
def test_a_text_arrives_to_the_letter(first: str, second: str) -> None:
    given_texts = (first, [first, second])
    assert composed(text_override("system", first), texts_override("prompts", [first, second])) == given_texts


def test_a_reference_would_else_be_resolved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "opened")
    assert composed('system="${oc.env:SECRET}"', 'prompts=["x"]')[0] == "opened"
