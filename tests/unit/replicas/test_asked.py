"""What a caller has seen of a request that is computed again."""

from hypothesis import given
from hypothesis import strategies as st

from mindbatch.decoding import DecodingParams
from mindbatch.engine.request import Request, StreamEvent
from mindbatch.replicas.dealing import InFlightRequest


def events(cuts: set[int], tokens: int) -> list[StreamEvent]:
    """The tokens 0, 1, ... whose texts are their numbers, in events that end at the cuts."""
    ends = [*sorted(cut for cut in cuts if 0 < cut < tokens), tokens]
    parts = [range(start, end) for start, end in zip([0, *ends], ends, strict=False)]
    made = [StreamEvent("key", 0, "".join(map(str, part)), tuple(part)) for part in parts]
    return [*made, StreamEvent("key", 0, "", (), "length")]


def asked() -> InFlightRequest:
    return InFlightRequest.of(Request("key", (1, 2), DecodingParams()))


@given(st.sets(st.integers(1, 19)), st.sets(st.integers(1, 19)), st.integers(0, 20))
def test_every_token_and_character_is_shown_once(first: set[int], second: set[int], ended: int) -> None:
    """Whatever drafts were accepted at once, and wherever the process ended."""
    request = asked()
    seen = [request.unseen(event) for event in events(first, 20)[:ended]]
    request.begin_again()
    seen += [request.unseen(event) for event in events(second, 20)]
    kept = [event for event in seen if event is not None]
    assert [token for event in kept for token in event.token_ids] == [*range(20)]
    assert "".join(event.text for event in kept) == "".join(map(str, range(20)))
    assert [event.finish_reason for event in kept].count("length") == 1
    assert kept[-1].finish_reason == "length"


def test_samples_are_apart() -> None:
    request = asked()
    one, other = StreamEvent("key", 0, "a", (1,)), StreamEvent("key", 1, "b", (2,))
    assert request.unseen(one) == one
    request.begin_again()
    assert request.unseen(other) == other
    assert request.unseen(one) is None
