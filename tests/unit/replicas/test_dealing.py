"""Who gets which request, and who is to blame when replicas die."""

import random

import pytest

from mindbatch.decoding import DecodingParams
from mindbatch.engine.request import Request
from mindbatch.replicas.dealing import Dealing
from mindbatch.replicas.replica import Asked, Replica


def replicas(count: int) -> list[Replica]:
    made = [Replica(index, range(index, index + 1), index) for index in range(count)]
    for replica in made:
        replica.waiting_for.clear()
    return made


def asked(number: int, **params: object) -> Asked:
    return Asked.of(Request(str(number), (1, 2), DecodingParams(**params)))


def dealing(given: list[Replica], requests: int, batch_size: int = 8) -> Dealing:
    made = Dealing(given, batch_size)
    for number in range(requests):
        made.add(asked(number))
    return made


def keys(replica: Replica) -> list[int]:
    return [int(key) for key in replica.dealt]


def test_each_has_a_little_more_than_a_batch() -> None:
    two = replicas(2)
    made = dealing(two, 100)
    assert len(made.deal()) == 20
    assert [len(replica.dealt) for replica in two] == [10, 10]
    assert made.num_waiting == 80
    del two[1].dealt["1"]
    [(replica, _)] = made.deal()
    assert replica is two[1]


def test_one_that_is_not_ready_gets_nothing() -> None:
    two = replicas(2)
    two[0].waiting_for.add(0)
    dealing(two, 5).deal()
    assert [len(replica.dealt) for replica in two] == [0, 5]


def test_a_request_of_many_sequences_counts_as_many() -> None:
    [one] = replicas(1)
    made = Dealing([one], 8)
    made.add(asked(0, do_sample=True, num_return_sequences=20))
    made.add(asked(1))
    assert len(made.deal()) == 1


def test_what_a_dead_replica_had_runs_alone_and_first() -> None:
    one, two = replicas(2)
    made = dealing([one, two], 30, batch_size=2)
    made.deal()
    assert (keys(one), keys(two)) == ([0, 2, 4, 6], [1, 3, 5, 7])
    assert made.take_back(one, may_be_a_row=True) == []
    for key in (0, 2, 4, 6):
        made.deal()
        assert keys(one) == [key]
        assert keys(two) == [1, 3, 5, 7]  # the other goes on
        one.dealt.clear()
    made.deal()
    assert keys(one) == [8, 9, 10, 11]


def test_who_was_alone_in_a_second_death_is_to_blame() -> None:
    [one] = replicas(1)
    made = dealing([one], 5, batch_size=2)
    made.deal()
    assert made.take_back(one, may_be_a_row=True) == []
    made.deal()
    [blamed] = made.take_back(one, may_be_a_row=True)
    assert blamed.request.key == "0"
    made.deal()
    assert keys(one) == [1]


def test_what_no_row_causes_blames_none() -> None:
    [one] = replicas(1)
    made = dealing([one], 6, batch_size=2)
    for _ in range(5):
        made.deal()
        assert keys(one) == [0, 1, 2, 3]
        assert made.take_back(one, may_be_a_row=False) == []


def test_a_suspect_that_was_ended_from_outside_stays_a_suspect() -> None:
    [one] = replicas(1)
    made = dealing([one], 6, batch_size=2)
    made.deal()
    made.take_back(one, may_be_a_row=True)
    for _ in range(3):
        made.deal()
        assert keys(one) == [0]
        made.take_back(one, may_be_a_row=False)


@pytest.mark.parametrize("batch_size", [1, 4, 20, 256])
@pytest.mark.parametrize("count", [1, 3])
def test_rows_that_end_their_replica_fail_and_no_others(batch_size: int, count: int) -> None:
    """However many there are, each in a few deaths; nothing is lost or dealt twice."""
    chance, some = random.Random(0), replicas(count)
    made = dealing(some, 400, batch_size=batch_size)
    poisonous, failed, done, deaths = {7, 8, 250, 399}, set(), set(), 0
    while len(failed) + len(done) < 400:
        made.deal()
        busy = [replica for replica in some if replica.dealt]
        replica = chance.choice(busy)
        if poisonous & set(keys(replica)[:batch_size]):
            deaths += 1
            failed |= {int(each.request.key) for each in made.take_back(replica, may_be_a_row=True)}
        else:
            key = keys(replica)[0]
            assert key not in done
            done.add(key)
            del replica.dealt[str(key)]
    assert failed == poisonous
    assert deaths <= 5 * len(poisonous)


def test_requests_are_dropped_wherever_they_wait() -> None:
    [one] = replicas(1)
    made = dealing([one], 8, batch_size=2)
    made.deal()
    made.take_back(one, may_be_a_row=True)
    made.drop({"0", "1", "7"})
    assert made.num_waiting == 5
    made.deal()
    assert keys(one) == [2]
    made.drop(None)
    assert made.num_waiting == 0
