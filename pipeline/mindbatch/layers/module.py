"""A model as a tree of layers: what they own is found by walking it, what they compute by calling it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from mindbatch.layers.rank import Rank
from mindbatch.models.tensor_spec import TensorSpec


class Module:
    """A node of the tree; its children are its attributes and the items of its lists.

    A node's name is the path to it, of attributes and numbers; `forward` says what it computes, of arrays or
    of symbols, once it is bound to a rank.
    """

    forward: Callable[..., Any]

    def __call__(self, *inputs: Any) -> Any:
        return self.forward(*inputs)

    def children(self, name: str = "") -> Iterator[tuple[str, Module]]:
        """Yields the modules below the node of this name, with theirs."""
        for key, child in vars(self).items():
            path = f"{name}.{key}" if name else key
            if isinstance(child, Module):
                yield path, child
            elif isinstance(child, list):
                yield from ((f"{path}.{number}", item) for number, item in enumerate(child))

    def parameters(self, name: str = "") -> Iterator[TensorSpec]:
        """Declares all parameters below the node of this name."""
        for path, child in self.children(name):
            yield from child.parameters(path)

    def bind(self, name: str, rank: Rank) -> None:
        """Gives all below the node their weights, as a rank has them, and what else they compute with."""
        for path, child in self.children(name):
            child.bind(path, rank)
