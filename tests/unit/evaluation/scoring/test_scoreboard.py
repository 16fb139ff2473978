"""Scores of several columns: over which rows, and which columns have none."""

import math

from mindbatch.evaluation.scoring.metric import Answer
from mindbatch.evaluation.scoring.registry import METRICS
from mindbatch.evaluation.scoring.scoreboard import MetricScores, scores_of

RIGHT, WRONG = Answer("a", ("a",)), Answer("b", ("a",))


def scores(columns: dict[str, dict[int, Answer]], baseline: str) -> MetricScores:
    return scores_of(METRICS["exact_match"], columns, [None] * 8, baseline)


def test_a_column_of_which_nothing_ran_leaves_the_others_their_scores() -> None:
    good = dict.fromkeys(range(8), RIGHT)
    found = scores({"a": good, "dead": {}, "c": good | {0: WRONG}}, "a")
    assert found.rows == tuple(range(8))
    assert (found.estimates["a"].value, found.estimates["c"].value) == (1.0, 0.875)
    assert math.isnan(found.estimates["dead"].value)
    assert (found.unscored, found.of_row("dead", 0), found.of_row("c", 0)) == (["dead"], None, 0.0)
    assert [*found.differences] == ["c"]


def test_without_a_baseline_there_are_no_differences() -> None:
    found = scores({"dead": {}, "c": dict.fromkeys(range(8), RIGHT)}, "dead")
    assert (found.estimates["c"].value, found.differences) == (1.0, {})
    assert scores({"dead": {}, "gone": {}}, "dead").unscored == ["dead", "gone"]
