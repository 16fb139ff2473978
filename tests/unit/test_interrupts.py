"""Interrupts: MindSpore's habit of taking the signal over ends with each step."""

import os
import signal
import threading
from collections.abc import Iterator

import pytest

from mindbatch.interrupts import interruptible


def ends_the_process(number: int, frame: object) -> None:
    """What MindSpore's handler does."""
    os.kill(os.getpid(), signal.SIGTERM)


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_an_interrupt_within_raises_and_the_handlers_are_back() -> None:
    def interrupted() -> None:
        with interruptible():
            signal.signal(signal.SIGINT, ends_the_process)
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_the_handler_taken_over_is_given_back() -> None:
    with interruptible():
        signal.signal(signal.SIGINT, ends_the_process)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_program_with_its_own_answer_to_sigterm_keeps_it() -> None:
    seen = []
    signal.signal(signal.SIGTERM, lambda number, frame: seen.append(number))
    with interruptible():
        os.kill(os.getpid(), signal.SIGTERM)
    assert seen == [signal.SIGTERM]


def test_a_program_that_ignores_interrupts_goes_on_ignoring_them() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with interruptible():
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
        signal.signal(signal.SIGINT, ends_the_process)
    assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN


def test_other_threads_leave_the_signals_alone() -> None:
    done = []

    def work() -> None:
        with interruptible():
            done.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done == [signal.SIG_DFL]
