"""What transformers decodes, and by how little it might have decoded something else."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import transformers
import transformers.generation.utils as generation
from transformers import AutoModelForCausalLM, GenerationConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast

NOISE = 2e-5
"""Half the width of what is added to logits, and by share to hidden states, in runs that must not differ."""
IMPOSSIBLE = -1e8
"""Scores below it are those of beams that transformers has barred."""


def load(folder: Path) -> PreTrainedModel:
    """The model in float32 without defaults of its own for generation."""
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")
    model.generation_config = GenerationConfig()
    return model.eval()


def penalised_for_every_beam(penalise: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """transformers' encoder_repetition_penalty with beams would leave all of them but the first alone."""

    def penalised(self: Any, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self.encoder_input_ids = self.encoder_input_ids[:1].expand(len(scores), -1)
        return penalise(self, input_ids, scores)

    return penalised


Penalty = transformers.EncoderRepetitionPenaltyLogitsProcessor
Penalty.__call__ = penalised_for_every_beam(Penalty.__call__)


class Gaps:
    """The smallest difference between a score that was taken and the next one that was not.

    per_group: beams of a group: the ranks at which being above or below decides something.
    """

    def __init__(self, per_group: int, *, every_rank: bool) -> None:
        self.per_group, self.every_rank = per_group, every_rank
        self.smallest = float("inf")

    def see(self, scores: torch.Tensor, ranks: range) -> None:
        """Scores [.., n] of which the first `ranks` are taken.

        A score that is no number decides nothing: transformers makes some where an end token that is not
        allowed yet should become likelier.
        """
        if scores.isnan().any():
            self.smallest = 0.0
            return
        best = torch.sort(scores.detach().float(), dim=-1, descending=True).values
        for rank in ranks:
            if rank < best.shape[-1]:
                above, below = best[..., rank - 1], best[..., rank]
                difference = (above - below)[below > IMPOSSIBLE]
                if difference.numel():
                    self.smallest = min(self.smallest, float(difference.min()))

    def see_top(self, scores: torch.Tensor, k: int) -> None:
        """The decisions of a torch.topk."""
        step = 1 if self.every_rank else self.per_group
        self.see(scores, range(step, k + 1, step))


@contextlib.contextmanager
def watched(gaps: Gaps, penalty_alpha: float) -> Iterator[None]:
    """torch.topk, torch.argmax and the ranking of contrastive search report what they decide to `gaps`."""
    topk, argmax = torch.topk, torch.argmax
    ranking = getattr(generation, "_ranking_fast", None)

    def seen_topk(scores: torch.Tensor, k: int, *rest: Any, **options: Any) -> Any:
        gaps.see_top(scores.clamp_min(1e-30).log() if penalty_alpha else scores, k)
        return topk(scores, k, *rest, **options)

    def seen_argmax(scores: torch.Tensor, *rest: Any, **options: Any) -> Any:
        gaps.see(scores, range(1, 2))
        return argmax(scores, *rest, **options)

    def seen_ranking(
        context: torch.Tensor, following: torch.Tensor, probabilities: torch.Tensor, *rest: Any
    ) -> Any:
        cosines = torch.nn.functional.cosine_similarity(context, following, dim=-1).max(-1).values
        gaps.see((1 - penalty_alpha) * probabilities[0] - penalty_alpha * cosines, range(1, 2))
        return ranking(context, following, probabilities, *rest)

    torch.topk, torch.argmax = seen_topk, seen_argmax
    if ranking is not None:
        generation._ranking_fast = seen_ranking
    try:
        yield
    finally:
        torch.topk, torch.argmax = topk, argmax
        if ranking is not None:
            generation._ranking_fast = ranking


@contextlib.contextmanager
def disturbed(model: PreTrainedModel, seed: int) -> Iterator[None]:
    """The model is as far off as another implementation's rounding could be, and farther."""
    random = torch.Generator().manual_seed(seed)

    def noise(tensor: torch.Tensor) -> torch.Tensor:
        return (torch.rand(tensor.shape, generator=random) * 2 - 1) * NOISE

    def disturb(_: Any, __: Any, output: CausalLMOutputWithPast) -> CausalLMOutputWithPast:
        output["logits"] = output.logits + noise(output.logits)
        if output.hidden_states is not None:
            *others, last = output.hidden_states
            output["hidden_states"] = (*others, last * (1 + noise(last)))
        return output

    handle = model.register_forward_hook(disturb)
    try:
        yield
    finally:
        handle.remove()


def decode(
    model: PreTrainedModel, prompt: list[int], params: dict[str, Any]
) -> tuple[list[list[int]], list[float] | None, float]:
    """Output tokens of each returned sequence up to its end token, their scores, and the smallest gap."""
    options = {name: value for name, value in params.items() if value != []}
    if "forced_eos_token_id" in options:
        options["forced_eos_token_id"] = options["forced_eos_token_id"][0]
    if "exponential_decay_length_penalty" in options:
        options["exponential_decay_length_penalty"] = tuple(options["exponential_decay_length_penalty"])
    ends = params.get("eos_token_id", [])
    config = GenerationConfig(
        **options, pad_token_id=ends[0] if ends else 0, return_dict_in_generate=True, output_scores=True
    )
    grouped = params.get("num_beam_groups", 1)
    per_group = params.get("num_beams", params.get("top_k", 1)) // grouped
    gaps = Gaps(per_group, every_rank=grouped > 1)
    ids = torch.tensor([prompt])
    with watched(gaps, params.get("penalty_alpha", 0.0)):
        found = model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=config)
    outputs = [until_end(row[len(prompt) :].tolist(), ends) for row in found.sequences]
    scores = getattr(found, "sequences_scores", None)
    if scores is not None:
        gaps.see(scores, range(1, len(scores)))
    return outputs, None if scores is None else scores.tolist(), gaps.smallest


def until_end(tokens: list[int], ends: list[int]) -> list[int]:
    """The tokens up to the first end token, which stays; padding follows it."""
    stop = next((place for place, token in enumerate(tokens) if token in ends), len(tokens))
    return tokens[: stop + 1]
