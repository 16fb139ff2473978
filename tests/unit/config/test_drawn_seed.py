"""decoding.seed=random: drawn once for a command, told, and written down."""

from pathlib import Path
from typing import Any

import pytest

from mindbatch.config.compose import compose_task
from mindbatch.config.composition import save_config
from mindbatch.decoding import DecodingParams
from mindbatch.tasks.registry import TASKS

GIVEN = ["model=tiny_gpt2", "decoding.do_sample=true", "decoding.seed=random"]
PROMPTS = "prompts=hi"


def composed(task: str, *overrides: str, file: Path | None = None) -> Any:
    return compose_task(TASKS[task], [*overrides], file).finish()


def test_a_seed_is_drawn_and_told() -> None:
    first, second = (composed("generate", *GIVEN, PROMPTS) for _ in range(2))
    seed = first.decoding.seed
    assert 0 < seed < 1 << 32
    assert seed != second.decoding.seed
    assert first.notes == (f"decoding.seed={seed} was drawn; it gives the same again",)
    assert first.resolved_settings["decoding"]["seed"] == seed
    assert composed("generate", *GIVEN[:2], "decoding.seed=3", PROMPTS).notes == ()


def test_a_saved_configuration_draws_no_other(tmp_path: Path) -> None:
    first = composed("generate", *GIVEN, PROMPTS)
    save_config(first, tmp_path / "saved.yaml")
    again = composed("generate", file=tmp_path / "saved.yaml")
    assert (again.decoding, again.notes) == (first.decoding, ())


@pytest.mark.parametrize("listed", ["decoding=[top_p,temperature]", "decoding=[top_p]"])
def test_all_strategies_of_a_comparison_have_one(tmp_path: Path, listed: str) -> None:
    first = composed("compare", GIVEN[0], "decoding.seed=random", listed, PROMPTS)
    assert {each.seed for each in first.variants.values()} == {first.drawn["decoding.seed"]}
    save_config(first, tmp_path / "saved.yaml")
    assert composed("compare", file=tmp_path / "saved.yaml").variants == first.variants


def test_of_a_batch_its_record_tells(tmp_path: Path) -> None:
    config = composed(
        "batch", *GIVEN, "data.path=pyproject.toml", "data.format=text", f"output.dir={tmp_path}/a"
    )
    assert (config.drawn, config.notes) == ({"decoding.seed": config.decoding.seed}, ())


def test_parameters_draw_one_when_they_are_made() -> None:
    first, second = (DecodingParams(seed="random") for _ in range(2))  # type: ignore[arg-type]
    assert isinstance(first.seed, int)
    assert first.seed != second.seed
    assert DecodingParams(seed=first.seed) == first


def test_a_variable_of_the_environment_is_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEED", "18446744073709551615")
    config = composed("generate", GIVEN[0], "decoding.seed=${oc.env:SEED}", PROMPTS)
    assert DecodingParams(**vars(config.decoding)).seed == (1 << 64) - 1
