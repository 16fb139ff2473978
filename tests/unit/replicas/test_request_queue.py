"""Who gets which request, who is to blame when replicas end, and what was seen of one that runs again."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mindbatch.decoding import DecodingParams
from mindbatch.engine.request import Request, StreamEvent
from mindbatch.replicas.request_queue import InFlightRequest, Replica, RequestQueue

HOW = "rank 0 ended with signal 9"


class Play:
    """Replicas that are ready at once, and requests 0, 1, ... for them."""

    def __init__(self, replicas: int, requests: int, at_once: int = 4, spare: int = 0) -> None:
        self.replicas = [Replica(index, range(index, index + 1), index) for index in range(replicas)]
        for replica in self.replicas:
            replica.waiting_for.clear()
        self.queue = RequestQueue(self.replicas, at_once, spare)
        for number in range(requests):
            self.add(number)

    def add(self, number: int, **params: object) -> None:
        self.queue.add(Request(str(number), (1, 2), DecodingParams(**params)))

    def dispatch(self) -> list[list[int]]:
        """The requests of each replica after another dispatch."""
        self.queue.dispatch(lambda replica, request: None)
        return [[int(key) for key in replica.in_flight] for replica in self.replicas]

    def end(self, index: int, *, may_be_a_row: bool = True) -> list[int]:
        """Ends a replica and starts it again; the requests to blame."""
        replica = self.replicas[index]
        blamed = self.queue.requeue(replica, HOW, may_be_a_row=may_be_a_row)
        replica.waiting_for.clear()
        assert all(HOW in (result.error or "") for result in blamed)
        return [int(result.key) for result in blamed]


def test_each_has_some_to_spare_until_the_end_is_near() -> None:
    """Rows of one length: whoever ends a batch first does not take what is the other's share."""
    play = Play(2, 192, 32, spare=8)
    assert [len(dealt) for dealt in play.dispatch()] == [40, 40]
    computed = [0, 0]
    while play.queue.has_work:
        for index, replica in enumerate(play.replicas):
            for key in [*replica.in_flight][:32]:
                del replica.in_flight[key]
                computed[index] += 1
            play.dispatch()
    assert computed == [96, 96]


def test_what_no_row_causes_blames_none() -> None:
    play = Play(1, 6)
    for _ in range(5):
        assert play.dispatch() == [[0, 1, 2, 3]]
        assert play.end(0, may_be_a_row=False) == []


def test_a_suspect_that_was_ended_from_outside_stays_a_suspect() -> None:
    play = Play(1, 6)
    play.dispatch()
    play.end(0)
    for _ in range(3):
        assert play.dispatch() == [[0]]
        assert play.end(0, may_be_a_row=False) == []


@pytest.mark.parametrize("max_sequences", [1, 4, 20, 256])
@pytest.mark.parametrize("replicas", [1, 3])
def test_rows_that_end_their_process_fail_and_no_others(max_sequences: int, replicas: int) -> None:
    """However many are beside them, each after a few ends; nothing is lost or dealt twice."""
    chance, play = random.Random(0), Play(replicas, 400, max_sequences)
    poisonous, failed, done, ends = {7, 8, 250, 399}, set[int](), set[int](), 0
    while len(failed) + len(done) < 400:
        dealt = play.dispatch()
        index = chance.choice([index for index, keys in enumerate(dealt) if keys])
        if poisonous & set(dealt[index]):
            ends += 1
            failed |= set(play.end(index))
        else:
            key = dealt[index][0]
            assert key not in done
            done.add(key)
            del play.replicas[index].in_flight[str(key)]
    assert failed == poisonous
    assert ends <= 5 * len(poisonous)


def test_requests_are_dropped_wherever_they_wait() -> None:
    play = Play(1, 8)
    play.dispatch()
    play.end(0)
    assert play.queue.drop({"0", "1", "7"}) == []
    assert play.queue.num_waiting == 5
    assert play.dispatch() == [[2]]
    assert play.queue.drop(None) == [(play.replicas[0], ["2"])]
    assert not play.queue.has_work


def events(cuts: set[int], tokens: int) -> list[StreamEvent]:
    """The tokens 0, 1, ... whose texts are their numbers, in events that end at the cuts."""
    ends = [*sorted(cut for cut in cuts if 0 < cut < tokens), tokens]
    parts = [range(start, end) for start, end in zip([0, *ends], ends, strict=False)]
    made = [StreamEvent("key", 0, "".join(map(str, part)), tuple(part)) for part in parts]
    return [*made, StreamEvent("key", 0, "", (), "length")]


@given(st.sets(st.integers(1, 19)), st.sets(st.integers(1, 19)), st.integers(0, 20))
def test_every_token_and_character_is_shown_once(first: set[int], second: set[int], ended: int) -> None:
    """Whatever drafts were accepted at once, and wherever the process ended."""
    request = InFlightRequest.of(Request("key", (1, 2), DecodingParams()))
    seen = [request.unseen(event) for event in events(first, 20)[:ended]]
    request.begin_again()
    seen += [request.unseen(event) for event in events(second, 20)]
    kept = [event for event in seen if event is not None]
    assert [token for event in kept for token in event.token_ids] == [*range(20)]
    assert "".join(event.text for event in kept) == "".join(map(str, range(20)))
    assert [event.finish_reason for event in kept].count("length") == 1
    assert kept[-1].finish_reason == "length"
