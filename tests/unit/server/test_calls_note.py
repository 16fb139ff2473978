"""A server prints once that calls stay text, when a request offers tools and no format is known."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from mindbatch.server.service import Service


def _service(name: str, has_offered_tools: bool) -> Any:
    server = SimpleNamespace(message_format=name)
    maker = SimpleNamespace(has_offered_tools=has_offered_tools)
    return SimpleNamespace(
        format=None, _maker=maker, _has_noted_calls=False, config=SimpleNamespace(server=server)
    )


@pytest.mark.parametrize(
    ("name", "has_offered_tools", "times"), [("auto", True, 1), ("none", True, 0), ("auto", False, 0)]
)
def test_that_calls_stay_text_is_noted_once(
    capsys: pytest.CaptureFixture[str], name: str, has_offered_tools: bool, times: int
) -> None:
    service = cast(Service, _service(name, has_offered_tools))
    for _ in range(3):
        Service._note_calls(service)
    assert capsys.readouterr().err.count("server.message_format=NAME") == times
