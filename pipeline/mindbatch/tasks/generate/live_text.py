"""`stream=true`: outputs shown while they grow, one after the other."""

from collections import defaultdict
from collections.abc import Sequence
from typing import TextIO

from mindbatch.calls import Run
from mindbatch.engine.request import Request, RequestOutput, StreamEvent
from mindbatch.llm import LLM
from mindbatch.tasks.loading_line import LoadingLine

Place = tuple[str, int]  # key of the prompt, number of the sample


def stream(llm: LLM, run: Run, file: TextIO, labelled: bool, line: LoadingLine) -> list[RequestOutput]:
    """Prints the outputs one after the other, the first one token by token while all of them run.

    Returns the results of prompts that could not go on.
    """
    live = LiveText(run.requests, file, labelled=labelled, with_prompt=llm.continues_prompts)
    failures = []
    for item in line.until_first(run):
        if isinstance(item, RequestOutput):
            live.finish(item)
            failures += [item] if item.error is not None else []
        else:
            live.put(item)
    return failures


class LiveText:
    """Prints the text of one output as it comes; that of outputs whose turn has not come is kept.

    labelled: put the prompt's key, and the sample's number, before each text.
    with_prompt: before each text the prompt that it goes on from, as it was given.
    """

    def __init__(
        self, requests: Sequence[Request], file: TextIO, *, labelled: bool, with_prompt: bool = True
    ) -> None:
        self._turns = [
            (request, sample) for request in requests for sample in range(request.params.num_return_sequences)
        ]
        self._turns.reverse()
        self._labelled = labelled
        self._with_prompt = with_prompt
        self._file = file
        self._kept: dict[Place, list[StreamEvent]] = defaultdict(list)
        self._absent: set[Place] = set()
        self._has_begun = False

    def put(self, event: StreamEvent) -> None:
        """Takes one event; prints it, and what waited for it to end, if its output has the turn."""
        self._kept[event.key, event.index].append(event)
        self._print_turns()

    def finish(self, result: RequestOutput) -> None:
        """Ends a request; nobody waits for outputs that were asked for and that a search did not find."""
        for request, sample in self._turns:
            if request.key == result.key and sample >= len(result.outputs):
                self._absent.add((request.key, sample))
        self._print_turns()

    def _print_turns(self) -> None:
        while self._turns and self._print_kept():
            self._turns.pop()
            self._has_begun = False

    def _print_kept(self) -> bool:
        """Prints what there is of the output that has the turn; whether it has ended."""
        request, sample = self._turns[-1]
        if (request.key, sample) in self._absent:
            if self._has_begun:
                self._print("\n")
            return True
        if not self._has_begun:
            self._has_begun = True
            if self._labelled:
                self._print(f"[{label(request.key, sample, request.params.num_return_sequences)}] ")
            self._print((request.prompt or "") if self._with_prompt else "")
        for event in self._kept.pop((request.key, sample), []):
            self._print(event.text)
            if event.finish_reason is not None:
                self._print("\n")
                return True
        return False

    def _print(self, text: str) -> None:
        print(text, end="", flush=True, file=self._file)


def label(key: str, index: int, samples: int) -> str:
    """The name of one output: the prompt's key, with the sample's number where there are several."""
    return key if samples == 1 else f"{key}.{index}"
