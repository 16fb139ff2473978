"""Words: token sequences, found by the tokens that come before their last one."""

from collections.abc import Sequence

from mindbatch.decoding.row import Step


class Words:
    """Sequences of two tokens or more; sequences of one token are passed over.

    A step looks up one tuple for each length that occurs, however many words there are.
    """

    def __init__(self, words: Sequence[tuple[int, ...]]) -> None:
        self._by_length: dict[int, dict[tuple[int, ...], list[int]]] = {}
        for place, word in enumerate(words):
            if len(word) > 1:
                beginnings = self._by_length.setdefault(len(word), {})
                beginnings.setdefault(word[:-1], []).append(place)

    def about_to_end(self, step: Step) -> list[int]:
        """Places of the words of which only the last token is missing after the row's latest tokens.

        As in transformers, prompt and output must together have at least as many tokens as the word: one that
        begins with the very first token of the prompt is not seen.
        """
        found: list[int] = []
        for length, beginnings in self._by_length.items():
            if length <= step.length:
                found += beginnings.get(step.latest(length - 1), ())
        return sorted(found)
