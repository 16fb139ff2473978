"""Contexts that close themselves: however their block ends, and an error goes on."""

import pytest

from mindbatch.io.closing import Closing


class Counted(Closing):
    def __init__(self) -> None:
        self.closed = 0

    def close(self) -> None:
        self.closed += 1


def test_it_is_closed_at_the_end_and_hides_no_error() -> None:
    with Counted() as held:
        assert held.closed == 0
    assert held.closed == 1
    with pytest.raises(KeyboardInterrupt), held:
        raise KeyboardInterrupt
    assert held.closed == 2
