"""How long the fuzzers run: pytest -m on_demand tests/fuzz --fuzz-cases 20000 --fuzz-seed 7."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fuzz-cases", type=int, default=5000, help="changed files for each reader")
    parser.addoption("--fuzz-seed", type=int, default=0, help="number of the first of them")
