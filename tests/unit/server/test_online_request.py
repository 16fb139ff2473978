"""The rows of one request: what they have in common is checked once, off the loop that serves all."""

import asyncio
import threading
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mindbatch.dataset.rows import DataRow
from mindbatch.decoding import DecodingParams
from mindbatch.run.result_rows import OutputOptions
from mindbatch.server.generation import OnlineRequest
from mindbatch.server.requests import ApiError
from mindbatch.server.service import Service


class _Engine:
    def __init__(self) -> None:
        self.submitted: list[tuple[Any, DecodingParams]] = []

    async def submit(self, rows: Iterable[tuple[Any, DecodingParams]], **options: Any) -> Any:
        self.submitted += rows
        raise ApiError(400, "enough", "enough")


@pytest.mark.parametrize("overrides", [{"bad_words_ids": [[5, 6]]}, {"do_sample": True, "temperature": 2.0}])
def test_the_parameters_of_a_request_are_checked_once_for_all_prompts(
    overrides: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, base = _Engine(), DecodingParams()
    service: Any = SimpleNamespace(engine=engine, _params=base, options=lambda row: OutputOptions())
    service.params = lambda row: Service.params(cast(Service, service), row)
    rows = [
        DataRow(key=str(n), source="request", line=1, content={"text": f"{n}"}, overrides=overrides)
        for n in range(50)
    ]
    threads: list[int] = []
    check = DecodingParams.__post_init__

    def checked(self: DecodingParams) -> None:
        threads.append(threading.get_ident())
        check(self)

    monkeypatch.setattr(DecodingParams, "__post_init__", checked)

    async def run() -> None:
        await OnlineRequest(service, rows).outputs()

    with pytest.raises(ApiError, match="enough"):
        asyncio.run(run())
    assert [prompt.text for prompt, _ in engine.submitted] == [str(n) for n in range(50)]
    assert len({id(params) for _, params in engine.submitted}) == 1
    assert len(threads) <= 2, "once, and once more with a seed that was drawn"
    assert threading.get_ident() not in threads
