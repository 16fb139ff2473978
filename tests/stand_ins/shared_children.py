"""Child processes for templates that many tests share: each takes a tenth of a second to start."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import pytest

from mindbatch.prompts.chat import ChatLimits, ChatProcess


@contextmanager
def shared_chat_processes(module: str) -> Iterator[None]:
    """`module` gets one ChatProcess for the same limits and subject, which lives on when it is closed."""
    processes: dict[object, ChatProcess] = {}

    class Shared(ChatProcess):
        def close(self) -> None:
            """The next test asks it."""

    def shared(
        limits: ChatLimits | None = None,
        *,
        subject: str = "chat template",
        kind: Literal["chat", "data"] = "chat",
    ) -> ChatProcess:
        key = limits, subject
        if key not in processes:
            processes[key] = Shared(limits, subject=subject, kind=kind)
        return processes[key]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(f"{module}.ChatProcess", shared)
        yield
    for process in processes.values():
        ChatProcess.close(process)
