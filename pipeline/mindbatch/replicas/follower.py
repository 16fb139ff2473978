"""Follower of a replica: computes its part of each step that its leader sends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NoReturn

import numpy as np

from mindbatch.replicas.connection import Message, MessageConnection, MessageError
from mindbatch.replicas.leading_runner import RankRunner
from mindbatch.replicas.step_messages import COMPARE, COMPUTE, DIGEST, PROJECT, TokenDigest, step_of


class Follower:
    """The runners of one rank, by number, at the disposal of the leader of its replica."""

    def __init__(self, leader: MessageConnection, runners: Sequence[RankRunner]) -> None:
        self._leader = leader
        self._runners = runners
        self._digest = TokenDigest()

    def follow(self, on_step: Callable[[bool], object] = lambda computes: None) -> NoReturn:
        """Computes what the leader says until its connection ends; does not return.

        on_step: called with True before a step is computed, with False after it.

        Raises:
            EOFError, OSError: the leader has gone.
            MessageError: it said something that is not understood.
        """
        while True:
            message = self._leader.receive()
            on_step(True)
            self._obey(message)
            on_step(False)

    def _obey(self, message: Message) -> None:
        if message.kind == COMPARE:
            self._leader.send(DIGEST, digest=self._digest.take())
        elif message.kind == COMPUTE:
            inputs = step_of(message.fields, message.arrays)
            values = self._runner(message).compute(inputs)
            if values.logits is not None:
                self._digest.add(values.logits.scores[: inputs.num_tokens])
        elif message.kind == PROJECT:
            hidden, *adapters = map(np.array, message.arrays)
            self._digest.add(self._runner(message).project(hidden, *adapters).scores)
        else:
            raise MessageError(f"the leader sent {message.kind!r}, which a follower does not understand")

    def _runner(self, message: Message) -> RankRunner:
        number = message.fields["runner"]
        if not isinstance(number, int) or not 0 <= number < len(self._runners):
            raise MessageError(f"the leader named runner {number!r}; this rank has {len(self._runners)}")
        return self._runners[number]
