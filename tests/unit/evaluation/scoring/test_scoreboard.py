"""Scores of several columns: over which rows, and which columns have none."""

import math

from mindbatch.evaluation import metric_of
from mindbatch.evaluation.metric import Answer
from mindbatch.evaluation.scores import MetricScores, scores_of

RIGHT, WRONG = (Answer("a", ("a",)),), (Answer("b", ("a",)),)


def scores(columns: dict[str, dict[int, tuple[Answer, ...]]], baseline: str) -> MetricScores:
    return scores_of(metric_of("exact_match"), columns, [None] * 8, baseline)


def test_a_column_of_which_nothing_ran_leaves_the_others_their_scores() -> None:
    good = dict.fromkeys(range(8), RIGHT)
    found = scores({"a": good, "dead": {}, "c": good | {0: WRONG}}, "a")
    assert found.rows == tuple(range(8))
    assert (found.estimates["a"].value, found.estimates["c"].value) == (1.0, 0.875)
    assert math.isnan(found.estimates["dead"].value)
    assert (found.unscored, found.per_row["dead"], found.per_row["c"][0]) == (["dead"], {}, 0.0)
    assert [*found.differences] == ["c"]


def test_without_a_baseline_there_are_no_differences() -> None:
    found = scores({"dead": {}, "c": dict.fromkeys(range(8), RIGHT)}, "dead")
    assert (found.estimates["c"].value, found.differences) == (1.0, {})
    assert scores({"dead": {}, "gone": {}}, "dead").unscored == ["dead", "gone"]


def test_samples_of_a_question_count_as_one_question() -> None:
    """Four samples of each of ten questions: the error is that of ten, and there is no exact test."""
    base = {number: RIGHT * 4 if number < 5 else WRONG * 4 for number in range(10)}
    once = {number: answers[:1] for number, answers in base.items()}
    half = dict.fromkeys(range(10), RIGHT * 2 + WRONG * 2)
    found = scores_of(metric_of("exact_match"), {"a": base, "b": half}, [None] * 10, "a")
    alone = scores_of(metric_of("exact_match"), {"a": once}, [None] * 10, "a")
    assert found.estimates["a"].stderr == alone.estimates["a"].stderr
    assert (found.estimates["b"].value, found.estimates["b"].stderr) == (0.5, 0.0)
    assert (found.differences["b"].test, found.differences["b"].gained) == ("bootstrap", None)
    assert found.per_row["b"][3] == 0.5
