"""Interrupts: put off while MindSpore runs, which takes the signal over, and raised afterwards."""

import os
import signal
import threading
from collections.abc import Iterator

import pytest

from mindbatch.io.interrupts import (
    DEFERRED_SIGNALS,
    SignalNotes,
    Terminated,
    interrupt_outcome,
    interruptible,
)


def ends_the_process(number: int, frame: object) -> None:
    """What MindSpore's handler does."""
    os.kill(os.getpid(), signal.SIGTERM)


def to_main_thread(number: int) -> None:
    """Not to the process: threads of libraries that tests have imported would take the signal."""
    identity = threading.main_thread().ident
    assert identity is not None
    signal.pthread_kill(identity, number)


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_an_interrupt_within_is_raised_at_the_end_and_the_handler_is_back() -> None:
    reached = []

    def interrupted() -> None:
        with interruptible():
            signal.signal(signal.SIGINT, ends_the_process)
            to_main_thread(signal.SIGINT)
            reached.append("the end")

    with pytest.raises(KeyboardInterrupt) as caught:
        interrupted()
    assert reached == ["the end"]
    assert not isinstance(caught.value, Terminated)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_sigterm_within_is_told_from_an_interrupt() -> None:
    notes = SignalNotes()
    notes.install()

    def terminated() -> None:
        with interruptible():
            signal.signal(signal.SIGINT, ends_the_process)
            to_main_thread(signal.SIGTERM)

    with pytest.raises(Terminated):
        terminated()
    assert notes.came is Terminated


def test_an_interrupt_is_noted_whatever_becomes_of_its_exception() -> None:
    notes = SignalNotes()
    notes.install()
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)
    assert notes.came is KeyboardInterrupt


def test_a_process_that_ignores_interrupts_goes_on_ignoring_them() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    SignalNotes().install()
    assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN


def test_a_signal_that_an_older_thread_takes_is_an_interrupt_too() -> None:
    """Where the program has no handler for SIGTERM: MindSpore's for SIGINT would end the process by it."""
    with interruptible():
        assert signal.getsignal(signal.SIGTERM) is signal.default_int_handler
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_threads_started_within_put_them_off_too() -> None:
    masks: list[set[int]] = []
    with interruptible():
        thread = threading.Thread(target=lambda: masks.append(signal.pthread_sigmask(signal.SIG_BLOCK, ())))
        thread.start()
        thread.join()
    assert masks[0] >= set(DEFERRED_SIGNALS)
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, ()) & set(DEFERRED_SIGNALS)


def test_a_program_with_its_own_answer_to_sigterm_keeps_it() -> None:
    seen = []
    signal.signal(signal.SIGTERM, lambda number, frame: seen.append(number))
    with interruptible():
        to_main_thread(signal.SIGTERM)
    assert seen == [signal.SIGTERM]


def test_a_program_that_ignores_interrupts_goes_on_ignoring_them() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with interruptible():
        signal.signal(signal.SIGINT, ends_the_process)
    assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN


def test_other_threads_leave_the_signals_alone() -> None:
    done = []

    def work() -> None:
        with interruptible():
            done.append(signal.pthread_sigmask(signal.SIG_BLOCK, ()))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert not done[0] & set(DEFERRED_SIGNALS)


def test_what_ends_a_command_is_said_and_in_its_exit_code() -> None:
    assert interrupt_outcome(KeyboardInterrupt) == ("interrupted", 128 + signal.SIGINT)
    assert interrupt_outcome(Terminated) == ("terminated", 128 + signal.SIGTERM)
