"""Launcher: the program that starts agents for a node's ranks; none where mindbatch does it."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from mindbatch.launch.node_place import NodePlace


@dataclass(frozen=True)
class Program:
    """A program to run. variables: beside those that it inherits.

    listens: at all addresses, though nobody on another host has to reach it.
    """

    name: str
    argv: Sequence[str]
    variables: Mapping[str, str] = field(default_factory=dict)
    listens: bool = False


class Starter(Protocol):
    """One launcher."""

    def faults(self) -> Iterator[str]:
        """Yields the reasons why it cannot be used on this machine."""
        ...

    def program(self, place: NodePlace, agent: Sequence[str]) -> Program | None:
        """The program that starts `agent`, a command, once for each rank of the node; None: there is none."""
        ...


class OwnStarter:
    """mindbatch starts the processes of a node itself."""

    def faults(self) -> Iterator[str]:
        return iter(())

    def program(self, place: NodePlace, agent: Sequence[str]) -> Program | None:
        return None


def missing_program(name: str, launcher: str, remedy: str) -> Iterator[str]:
    """A fault where a program is not installed."""
    if shutil.which(name, path=with_our_python(os.environ)["PATH"]) is None:
        yield f"launch.launcher={launcher}: {name} is not on the PATH; {remedy}, or use launch=dynamic"


def with_our_python(environment: Mapping[str, str]) -> dict[str, str]:
    """PATH with this Python first: where a launcher looks `python3` up, it shall find the one that runs."""
    own = str(Path(sys.executable).parent)
    rest = [folder for folder in environment.get("PATH", os.defpath).split(os.pathsep) if folder != own]
    return {"PATH": os.pathsep.join([own, *rest])}
