"""A stream goes on where it was when its replica died."""

from hypothesis import given
from hypothesis import strategies as st

from mindbatch.engine.request import StreamEvent
from mindbatch.replicas.repeated_events import ShownEvents


def events(cuts: set[int], tokens: int) -> list[StreamEvent]:
    """The tokens 0, 1, ... whose texts are their numbers, in events that end at the cuts."""
    ends = [*sorted(cut for cut in cuts if 0 < cut < tokens), tokens]
    parts = [range(start, end) for start, end in zip([0, *ends], ends, strict=False)]
    made = [StreamEvent("key", 0, "".join(map(str, part)), tuple(part)) for part in parts]
    return [*made, StreamEvent("key", 0, "", (), "length")]


@given(st.sets(st.integers(1, 19)), st.sets(st.integers(1, 19)), st.integers(0, 20))
def test_every_token_and_character_is_shown_once(first: set[int], second: set[int], died: int) -> None:
    shown = ShownEvents()
    seen = [shown.rest_of(event) for event in events(first, 20)[:died]]
    shown.begin_again()
    seen += [shown.rest_of(event) for event in events(second, 20)]
    kept = [event for event in seen if event is not None]
    assert [token for event in kept for token in event.token_ids] == [*range(20)]
    assert "".join(event.text for event in kept) == "".join(map(str, range(20)))
    assert kept[-1].finish_reason == "length"
    assert all(event.token_ids or event.text or event.finish_reason for event in kept)


def test_samples_are_apart() -> None:
    shown = ShownEvents()
    one, other = StreamEvent("key", 0, "a", (1,)), StreamEvent("key", 1, "b", (2,))
    assert shown.rest_of(one) == one
    shown.begin_again()
    assert shown.rest_of(other) == other
    assert shown.rest_of(one) is None
