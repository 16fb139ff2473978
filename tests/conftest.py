"""For all tests: few examples of Hypothesis, no network, nothing hidden from messages; a model folder."""

import gc
import json
import os
import pickle
import socket
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, settings

from mindbatch.config import hydra_tree, paths
from mindbatch.io import screen_text as hidden_values
from optional_packages import OPTIONAL, reason_to_skip

# Each run draws others. scripts/test.sh --fast draws fewer; many more: pytest --hypothesis-profile thorough
SUPPRESSED = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
settings.register_profile("brief", max_examples=25, deadline=None, suppress_health_check=SUPPRESSED)
settings.register_profile("fast", settings.get_profile("brief"), max_examples=10)
settings.register_profile("thorough", settings.get_profile("brief"), max_examples=500)
settings.load_profile("brief")


def pytest_configure() -> None:
    """Nothing becomes garbage while thousands of tests are collected, nor where they are only reported."""
    gc.disable()


@pytest.hookimpl(tryfirst=True)  # before -m chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of a test with fast_cases(n) the cases after the first n are slow; needs(...) may skip a test."""
    seen: Counter[str] = Counter()
    for item in items:
        needed = [package for mark in item.iter_markers("needs") for package in mark.args]
        if (reason := reason_to_skip(*needed)) is not None:
            item.add_marker(pytest.mark.skip(reason=reason))
        if (mark := item.get_closest_marker("fast_cases")) is not None:
            name = item.nodeid.partition("[")[0]
            seen[name] += 1
            if seen[name] > mark.args[0]:
                item.add_marker(pytest.mark.slow)


class _Module(pytest.Module):
    """A file of tests, skipped if it imports an optional package that is not installed."""

    def collect(self) -> Iterable[pytest.Item | pytest.Collector]:
        try:
            return super().collect()
        except self.CollectError as error:
            lacks = error.__cause__
            package = str(getattr(lacks, "name", None)).partition(".")[0]
            if isinstance(lacks, ModuleNotFoundError) and package in OPTIONAL and reason_to_skip(package):
                pytest.skip(reason_to_skip(package) or "", allow_module_level=True)
            raise


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module:
    return cast(pytest.Module, _Module.from_parent(parent, path=module_path))


def pytest_collection_finish() -> None:
    """MindSpore collects garbage before each compilation: what was imported by now need not be looked at."""
    gc.freeze()
    gc.enable()


def pytest_unconfigure() -> None:
    """pytest collects garbage several times as it ends: what the tests have left need not be looked at."""
    gc.freeze()


LOCAL = ("127.", "::1", "localhost")


def refuse_strangers(host: object) -> None:
    if host and not str(host if isinstance(host, str) else bytes(host).decode()).startswith(LOCAL):
        raise AssertionError(f"a test tried to reach {host!r}")


@pytest.fixture(autouse=True, scope="session")
def _no_network() -> Iterator[None]:
    """Refuses to connect to, or look up, any host but this one."""
    connect, connect_ex, getaddrinfo = socket.socket.connect, socket.socket.connect_ex, socket.getaddrinfo

    def checked_connect(self: socket.socket, address: Any) -> None:
        if self.family != socket.AF_UNIX:
            refuse_strangers(address[0])
        connect(self, address)

    def checked_connect_ex(self: socket.socket, address: Any) -> int:
        if self.family != socket.AF_UNIX:
            refuse_strangers(address[0])
        return connect_ex(self, address)

    def checked_getaddrinfo(host: Any, *arguments: Any, **options: Any) -> Any:
        refuse_strangers(host)
        return getaddrinfo(host, *arguments, **options)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(socket.socket, "connect", checked_connect)
        patched.setattr(socket.socket, "connect_ex", checked_connect_ex)
        patched.setattr(socket, "getaddrinfo", checked_getaddrinfo)
        yield


@pytest.fixture(autouse=True, scope="session")
def _disk_not_waited_for() -> Iterator[None]:
    """fsync takes milliseconds and keeps data through a power cut: tests of those have disks of their own."""

    def sync(file: Any) -> None:
        os.fstat(file if isinstance(file, int) else file.fileno())

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "fsync", sync)
        yield


@pytest.fixture(autouse=True, scope="session")
def _shipped_files_composed_once() -> Iterator[None]:
    """Hydra takes a tenth of a second to compose a task's shipped files, which hundreds of tests ask for."""
    compose_with_hydra = hydra_tree.composed_content
    composed: dict[object, bytes] = {}

    def compose_once(hydra: hydra_tree.OptionContents, name: str, overrides: tuple[str, ...]) -> Any:
        if hydra.options.added is not None or hydra.options.shipped != paths.data_root() / "configs":
            return compose_with_hydra(hydra, name, overrides)
        if (name, overrides) not in composed:
            composed[name, overrides] = pickle.dumps(compose_with_hydra(hydra, name, overrides))
        return pickle.loads(composed[name, overrides])

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(hydra_tree, "composed_content", compose_once)
        yield


@pytest.fixture(autouse=True)
def _nothing_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a configuration took from the environment is hidden for the life of a process."""
    monkeypatch.setattr(hidden_values, "_hidden", {})


@pytest.fixture
def model_folder(tmp_path: Path) -> Path:
    """A folder whose config.json says 32 heads; that is all that configurations look at."""
    folder = tmp_path / "llama-32-heads"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "num_attention_heads": 32}))
    return folder
