"""Trains the shipped tiny GPT-2 with MindSpore on the CPU and writes it as a Hugging Face folder.

python examples/training/train_tiny.py --output examples/tiny_gpt2 [--steps N] [--seed 0]

That is the first stage; the second, lengthen_tiny.py, gives the model its positions from 256 on.
"""

import argparse
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import mindspore as ms
import numpy as np
import numpy.typing as npt
from mindspore import Tensor, nn, ops
from tokenizers import Tokenizer

from tiny_corpus import training_countings, training_sums
from tiny_folder import END_OF_TEXT, save_folder, train_tokenizer, versions
from tiny_network import Shape, TinyGPT2
from tiny_packing import PADDING
from tiny_scores import score

REPORT_EVERY = 25

Rows = npt.NDArray[np.int32]  # [documents, tokens]
Batch = tuple[Rows, Rows, Rows]  # long countings, short countings, sums


@dataclass(frozen=True)
class Settings:
    """How the model is trained."""

    seed: int = 0
    steps: int = 700
    short_counting: int = 72  # tokens; rows of like length are batched together, so that little is padding
    long_countings_per_step: int = 6
    short_countings_per_step: int = 12
    sums_per_step: int = 96
    warmup_steps: int = 40
    peak_learning_rate: float = 2e-3
    final_learning_rate: float = 4e-5
    weight_decay: float = 0.01
    beta2: float = 0.98
    largest_gradient_norm: float = 1.0


def main() -> None:
    """Trains the tokenizer and the model, scores what was learnt, and writes the folder."""
    arguments = parse_arguments()
    settings = Settings(seed=arguments.seed, steps=arguments.steps)
    ms.set_device("CPU")
    ms.set_context(mode=ms.GRAPH_MODE)
    ms.set_seed(settings.seed)
    rng = np.random.default_rng(settings.seed)

    countings, sums = training_countings(), training_sums()
    tokenizer = train_tokenizer(countings + sums)
    shape = Shape(vocab_size=tokenizer.get_vocab_size())
    network = TinyGPT2(shape, rng)
    encoded_batches = batches(encode(tokenizer, countings), encode(tokenizer, sums), settings, rng)
    began = time.perf_counter()
    curve = train(network, encoded_batches, settings)
    seconds = time.perf_counter() - began

    scores = score(network, tokenizer, shape.positions)
    for name, fraction in scores.items():
        print(f"right: {fraction:6.1%}  {name}")
    record = {
        "shape": asdict(shape),
        "settings": asdict(settings),
        "parameters": sum(parameter.size for parameter in network.get_parameters()),
        "seconds": round(seconds, 1),
        "loss": curve,
        "right": scores,
        "versions": versions(),
    }
    weights = {name: parameter.asnumpy() for name, parameter in network.parameters_dict().items()}
    save_folder(arguments.output, weights, tokenizer, shape, record)
    print(f"wrote {arguments.output} after {seconds:.0f} s of training")


def parse_arguments() -> argparse.Namespace:
    """The command line; a step count below 1 or a negative seed is a usage error (exit status 2)."""
    parser = argparse.ArgumentParser(description="Train the shipped tiny GPT-2 with MindSpore on the CPU.")
    parser.add_argument("--output", type=Path, required=True, help="folder to write the model to")
    parser.add_argument("--steps", type=int, default=Settings.steps, help="optimiser steps (%(default)s)")
    parser.add_argument("--seed", type=int, default=Settings.seed, help="of weights and text (%(default)s)")
    arguments = parser.parse_args()
    if arguments.steps < 1:
        parser.error(f"--steps {arguments.steps}: must be at least 1")
    if not 0 <= arguments.seed < 2**32:
        parser.error(f"--seed {arguments.seed}: must be from 0 to {2**32 - 1}")
    return arguments


def encode(tokenizer: Tokenizer, documents: list[str]) -> list[list[int]]:
    """The token ids of each document, closed by `<|endoftext|>`."""
    end = tokenizer.token_to_id(END_OF_TEXT)
    return [[*tokenizer.encode(document).ids, end] for document in documents]


def padded(encoded: list[list[int]]) -> Rows:
    """One row a document, padded to the longest."""
    rows = np.full((len(encoded), max(map(len, encoded))), PADDING, np.int32)
    for row, tokens in zip(rows, encoded, strict=True):
        row[: len(tokens)] = tokens
    return rows


def batches(
    countings: list[list[int]], sums: list[list[int]], settings: Settings, rng: np.random.Generator
) -> Iterator[Batch]:
    """Endless batches drawn with replacement; each part keeps its shape, so one graph takes them all."""
    long_rows = padded([tokens for tokens in countings if len(tokens) > settings.short_counting])
    short_rows = padded([tokens for tokens in countings if len(tokens) <= settings.short_counting])
    sum_rows = padded(sums)

    def draw(rows: Rows, count: int) -> Rows:
        drawn: Rows = rows[rng.integers(len(rows), size=count)]
        return drawn

    while True:
        yield (
            draw(long_rows, settings.long_countings_per_step),
            draw(short_rows, settings.short_countings_per_step),
            draw(sum_rows, settings.sums_per_step),
        )


def train(network: nn.Cell, batches: Iterator[Batch], settings: Settings) -> list[dict[str, float]]:
    """Runs the optimiser in place and returns its curve: the mean loss since the point before.

    The loss of a step is the sum of the mean losses, in nats a token, of the three parts of its batch.
    """
    step = training_step(network, settings)
    curve: list[dict[str, float]] = []
    losses: list[float] = []
    for number in range(1, settings.steps + 1):
        losses.append(float(step(*map(Tensor, next(batches)))))
        if number % REPORT_EVERY == 0 or number in (1, settings.steps):
            curve.append({"step": number, "loss": round(sum(losses) / len(losses), 5)})
            print(f"step {number:4d} of {settings.steps}: loss {curve[-1]['loss']:.5f}", flush=True)
            losses.clear()
    return curve


def training_step(network: nn.Cell, settings: Settings) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """One compiled graph: forward, backward, clipping and AdamW; takes a batch and returns its loss."""
    optimizer = nn.AdamWeightDecay(
        decayed_groups(network, settings.weight_decay),
        learning_rate=learning_rates(
            settings.steps, settings.warmup_steps, settings.peak_learning_rate, settings.final_learning_rate
        ),
        beta2=settings.beta2,
    )

    def mean_loss(rows: Tensor) -> Tensor:
        logits = network(ops.maximum(rows[:, :-1], 0))  # any token will do in place of padding
        return ops.cross_entropy(logits.reshape(-1, logits.shape[-1]), rows[:, 1:].reshape(-1))

    def loss_of(long_countings: Tensor, short_countings: Tensor, sums: Tensor) -> Tensor:
        return mean_loss(long_countings) + mean_loss(short_countings) + mean_loss(sums)

    loss_and_gradients = ms.value_and_grad(loss_of, None, optimizer.parameters)

    def step(long_countings: Tensor, short_countings: Tensor, sums: Tensor) -> Tensor:
        loss, gradients = loss_and_gradients(long_countings, short_countings, sums)
        optimizer(ops.clip_by_global_norm(gradients, settings.largest_gradient_norm))
        return loss

    compiled: Callable[[Tensor, Tensor, Tensor], Tensor] = ms.jit(step)
    return compiled


def decayed_groups(network: nn.Cell, weight_decay: float) -> list[dict[str, object]]:
    """Matrices decay; biases and layer norms (vectors) do not."""
    parameters = network.trainable_params()
    return [
        {"params": [p for p in parameters if p.ndim == 2], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.ndim == 1], "weight_decay": 0.0},
    ]


def learning_rates(steps: int, warmup_steps: int, peak: float, final: float) -> list[float]:
    """A rate per step: a linear warm-up to the peak, then half a cosine down to the final rate."""
    rates = []
    for step in range(steps):
        warmup = min(1.0, (step + 1) / warmup_steps)
        cosine = 0.5 * (1 + math.cos(math.pi * step / steps))
        rates.append(warmup * (final + (peak - final) * cosine))
    return rates


if __name__ == "__main__":
    main()
