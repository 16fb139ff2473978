"""Which matrices of a folder are quantised, and the layout of each."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping

from mindbatch.checkpoint.error_lines import first_lines, shown
from mindbatch.checkpoint.folders.folder_files import CONFIG_NAME
from mindbatch.checkpoint.formats.floats import Array
from mindbatch.checkpoint.quantised.layout import QuantisedLayout
from mindbatch.io.errors import CheckpointError

ReadValues = Callable[[str], Array]
"""Reads a tensor by its name."""


class Scheme(ABC):
    """source: name of the file that says how matrices are stored. title: name of the method, for messages."""

    source: str = CONFIG_NAME
    title: str

    @abstractmethod
    def layouts(self, names: Collection[str], values: ReadValues) -> Mapping[str, QuantisedLayout]:
        """The layout of each quantised matrix, by what the names of its tensors begin with.

        names: all tensors of the folder.

        CheckpointError for names that contradict what is said of them.
        """


class ByMark(Scheme):
    """A matrix has the layout of which it has the tensor that marks it."""

    def __init__(self, *layouts: QuantisedLayout) -> None:
        self.title = titles(layouts)
        self._layouts = layouts

    def layouts(self, names: Collection[str], values: ReadValues) -> Mapping[str, QuantisedLayout]:
        marked = {module: layout for layout in self._layouts for module in marked_modules(layout, names)}
        if not marked:
            marks = " or ".join(f"*{layout.separator}{layout.marks}" for layout in self._layouts)
            raise CheckpointError(f"{self.source} says {self.title}; no tensor is stored so, as {marks}")
        return marked


class ByName(Scheme):
    """A matrix that has a tensor which marks any of the layouts has the one that is chosen by its name."""

    def __init__(
        self, layouts: Iterable[QuantisedLayout], chosen: Callable[[str], QuantisedLayout | None]
    ) -> None:
        self._layouts = (*dict.fromkeys(layouts),)
        self.title = titles(self._layouts)
        self._chosen = chosen

    def layouts(self, names: Collection[str], values: ReadValues) -> Mapping[str, QuantisedLayout]:
        modules = dict.fromkeys(
            module for layout in self._layouts for module in marked_modules(layout, names)
        )
        chosen = {module: self._chosen(module) for module in modules}
        if unsaid := [module for module, layout in chosen.items() if layout is None]:
            listed = ", ".join(first_lines(unsaid, shown, limit=4, noun="matrices"))
            raise CheckpointError(
                f"{self.source} does not say how these, which have scales, are stored: {listed}"
            )
        return {module: layout for module, layout in chosen.items() if layout is not None}


def marked_modules(layout: QuantisedLayout, names: Collection[str]) -> list[str]:
    """The beginnings of the names that end with the layout's mark."""
    end = f"{layout.separator}{layout.marks}"
    return [name.removesuffix(end) for name in names if name.endswith(end)]


def titles(layouts: Iterable[QuantisedLayout]) -> str:
    return " and ".join(dict.fromkeys(layout.title for layout in layouts))
