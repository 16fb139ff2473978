"""Closing of resources at the end of a `with` block."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

Own = TypeVar("Own", bound="Closing")


class Closing(ABC):
    """A context that closes itself, however its block ends."""

    def __enter__(self: Own) -> Own:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @abstractmethod
    def close(self) -> None:
        """Releases the resources."""


@contextmanager
def closed_on_error(resource: Closing) -> Iterator[None]:
    """Closes a resource if the block raises, and only then."""
    try:
        yield
    except BaseException:
        resource.close()
        raise
