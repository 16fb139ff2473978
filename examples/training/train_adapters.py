"""Trains a shipped adapter of the tiny GPT-2 with MindSpore on the CPU and writes it as a PEFT folder.

python examples/training/train_adapters.py decreasing --base examples/tiny_gpt2 --output FOLDER

It learns to answer one task of number_words.py, from the first numbers that are not held out, beside the
countings and sums that the base knows, so that these are not forgotten.
"""

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import mindspore as ms
import numpy as np
import numpy.typing as npt
from mindspore import Parameter, Tensor, nn, ops
from safetensors.numpy import load_file
from tokenizers import Tokenizer

from number_words import DECREASING, EVEN, INCREASING, SequenceTask, held_out, seen
from tiny_corpus import counting_cases, sum_cases
from tiny_folder import END_OF_TEXT, versions
from tiny_lora import LoraSettings, adapt, write_peft_folder
from tiny_network import Shape, TinyGPT2
from tiny_packing import PADDING
from tiny_scores import fraction_right
from train_tiny import learning_rates

POSITIONS = "transformer.wpe.weight"
REPORT_EVERY = 20

Rows = npt.NDArray[np.int32]  # [documents, tokens]
Part = tuple[Rows, Rows]  # tokens and labels
Case = tuple[str, str]  # prompt and answer


@dataclass(frozen=True)
class Settings:
    """How an adapter is trained, or goes on being trained.

    moved: in every second step the answers stand anywhere. Otherwise a number's place is learnt as well as
        what precedes it, and after a first number that was never seen all places are new.
    moved_alone: each answer, in every second step of its own.
    hardest: weight of the largest loss of each answer. An answer is wrong if one of its tokens is, and the
        rare ones (what follows "twenty-one, twenty,") are little of the mean.
    """

    steps: int
    seed: int = 0
    answers_per_step: int = 5
    countings_per_step: int = 1
    sums_per_step: int = 12
    warmup_steps: int = 20
    peak_learning_rate: float = 3e-3
    final_learning_rate: float = 1e-4
    beta2: float = 0.98
    largest_gradient_norm: float = 1.0
    moved: bool = False
    moved_alone: bool = False
    hardest: float = 0.0


class Recipe(NamedTuple):
    """What an adapter learns, its shape, and how: each stage goes on from what the one before has made."""

    task: SequenceTask
    lora: LoraSettings
    stages: tuple[Settings, ...]


RECIPES = {
    "decreasing": Recipe(
        DECREASING,
        LoraSettings(rank=16, alpha=32),
        (
            Settings(480, answers_per_step=8, sums_per_step=8, moved=True),
            Settings(
                260,
                seed=1,
                answers_per_step=8,
                sums_per_step=6,
                warmup_steps=10,
                peak_learning_rate=2e-3,
                moved=True,
            ),
            Settings(
                400,
                seed=2,
                answers_per_step=8,
                countings_per_step=3,
                sums_per_step=6,
                warmup_steps=10,
                peak_learning_rate=1.5e-3,
                final_learning_rate=2e-5,
                moved_alone=True,
                hardest=0.1,
            ),
        ),
    ),
    "even": Recipe(EVEN, LoraSettings(rank=4, alpha=8), (Settings(220),)),
}


def main() -> None:
    """Trains the adapter, scores it on what was held out, and writes its folder."""
    parser = argparse.ArgumentParser(description="Train a shipped adapter with MindSpore on the CPU.")
    parser.add_argument("adapter", choices=[*RECIPES], help="what it learns")
    parser.add_argument("--base", type=Path, required=True, help="the folder of tiny_gpt2")
    parser.add_argument("--output", type=Path, required=True, help="folder to write the adapter to")
    arguments = parser.parse_args()
    ms.set_device("CPU")
    ms.set_context(mode=ms.GRAPH_MODE)
    make(arguments.base, arguments.output, RECIPES[arguments.adapter])


def make(base: Path, folder: Path, recipe: Recipe) -> None:
    """One adapter."""
    tokenizer = Tokenizer.from_file(str(base / "tokenizer.json"))
    before = scores(base_network(base), tokenizer, recipe.task)  # a network that ran stays compiled as it was
    began = time.perf_counter()
    adapted: list[Parameter] = []
    curves = []
    for settings in recipe.stages:
        ms.set_seed(settings.seed)
        rng = np.random.default_rng(settings.seed)
        network = base_network(base)
        adapted = adapt(network, recipe.lora, rng, adapted)
        curves.append(train(network, adapted, parts(tokenizer, recipe.task), settings, rng))
    record = {
        "task": recipe.task.name,
        "lora": asdict(recipe.lora),
        "stages": [asdict(settings) for settings in recipe.stages],
        "parameters": sum(parameter.size for parameter in adapted),
        "seconds": round(time.perf_counter() - began, 1),
        "loss": curves,
        "right before": before,
        "right": scores(network, tokenizer, recipe.task),
        "versions": versions(),
    }
    write_peft_folder(folder, adapted, recipe.lora)
    (folder / "training.json").write_text(json.dumps(record, indent=2) + "\n")
    print(f"{folder}: right {record['right']}, before {before}, {record['seconds']} s")


def base_network(folder: Path) -> TinyGPT2:
    """The shipped model with its first 256 positions, more than an answer needs."""
    weights = load_file(folder / "model.safetensors")
    shape = Shape(vocab_size=len(weights["transformer.wte.weight"]))
    network = TinyGPT2(shape, np.random.default_rng(0))
    weights[POSITIONS] = weights[POSITIONS][: shape.positions]
    for name, parameter in network.parameters_dict().items():
        parameter.set_data(Tensor(weights[name]))
    return network


def parts(tokenizer: Tokenizer, task: SequenceTask) -> list[Part]:
    """The task's answers, countings and sums."""
    answers = cases_of(task, seen(task))
    return [rows_of(tokenizer, cases) for cases in (answers, counting_cases(), sum_cases())]


def cases_of(task: SequenceTask, starts: list[int]) -> list[Case]:
    """Prompt and answer from each first number."""
    return [(task.prompt(start), f" {task.answer(start)}") for start in starts]


def rows_of(tokenizer: Tokenizer, cases: list[Case]) -> Part:
    """Tokens, and the next token as label where it belongs to an answer; rows are as long as the longest."""
    end = tokenizer.token_to_id(END_OF_TEXT)
    encoded = [(tokenizer.encode(prompt).ids, tokenizer.encode(answer).ids) for prompt, answer in cases]
    longest = max(len(prompt) + len(answer) for prompt, answer in encoded)
    tokens = np.zeros((len(cases), longest), np.int32)
    labels = np.full((len(cases), longest), PADDING, np.int32)
    for row, (prompt, answer) in enumerate(encoded):
        size = len(prompt) + len(answer)
        tokens[row, :size] = [*prompt, *answer]
        labels[row, len(prompt) - 1 : size] = [*answer, end]
    return tokens, labels


def train(
    network: TinyGPT2,
    adapted: list[Parameter],
    parts: list[Part],
    settings: Settings,
    rng: np.random.Generator,
) -> list[dict[str, float]]:
    """Runs the optimiser in place and returns its curve: the mean loss since the point before."""
    step = training_step(network, adapted, settings)
    counts = settings.answers_per_step, settings.countings_per_step, settings.sums_per_step
    curve: list[dict[str, float]] = []
    losses: list[float] = []
    for number in range(1, settings.steps + 1):
        chosen = [rng.integers(len(part[0]), size=count) for part, count in zip(parts, counts, strict=True)]
        batch = [Tensor(rows[i]) for part, i in zip(parts, chosen, strict=True) for rows in part]
        losses.append(float(step(positions_of(parts[0], settings, rng), *batch)))
        if number % REPORT_EVERY == 0 or number in (1, settings.steps):
            curve.append({"step": number, "loss": round(sum(losses) / len(losses), 5)})
            print(f"step {number:4d} of {settings.steps}: loss {curve[-1]['loss']:.5f}", flush=True)
            losses.clear()
    return curve


def positions_of(answers: Part, settings: Settings, rng: np.random.Generator) -> Tensor:
    """Where the answers of a step stand: [T], or of each [answers, T]."""
    longest = answers[0].shape[1]
    last = Shape.positions - longest + 1
    first: npt.NDArray[np.int64] | np.int64 = np.int64(0)
    if settings.moved_alone:
        count = (settings.answers_per_step, 1)
        first = rng.integers(2, size=count) * rng.integers(last, size=count)
    elif settings.moved:
        first = rng.integers(2) * rng.integers(last)
    return Tensor((first + np.arange(longest)).astype(np.int32))


def training_step(network: TinyGPT2, adapted: list[Parameter], settings: Settings) -> Callable[..., Tensor]:
    """One compiled graph: forward, backward, clipping and Adam; takes a batch and returns its loss."""
    rates = learning_rates(
        settings.steps, settings.warmup_steps, settings.peak_learning_rate, settings.final_learning_rate
    )
    optimizer = nn.Adam(adapted, learning_rate=rates, beta2=settings.beta2)

    places = network.transformer.wpe.weight

    def mean_loss(tokens: Tensor, labels: Tensor, table: Tensor) -> Tensor:
        logits = network.with_positions(tokens, table)
        return ops.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1))

    def answers_loss(tokens: Tensor, labels: Tensor, table: Tensor) -> Tensor:
        if not settings.hardest:
            return mean_loss(tokens, labels, table)
        logits = network.with_positions(tokens, table)
        flat = ops.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1), reduction="none")
        losses = flat.reshape(labels.shape)  # 0 where there is no label
        mean = losses.sum() / (labels != PADDING).astype(losses.dtype).sum()
        return mean + settings.hardest * losses.max(axis=1).mean()

    def loss_of(
        positions: Tensor, answers: Tensor, next_of_answers: Tensor, countings: Tensor,
        next_of_countings: Tensor, sums: Tensor, next_of_sums: Tensor,
    ) -> Tensor:  # fmt: skip
        kept = mean_loss(countings, next_of_countings, places) + mean_loss(sums, next_of_sums, places)
        return answers_loss(answers, next_of_answers, places[positions]) + 0.5 * kept

    loss_and_gradients = ms.value_and_grad(loss_of, None, optimizer.parameters)

    def step(*batch: Tensor) -> Tensor:
        loss, gradients = loss_and_gradients(*batch)
        optimizer(ops.clip_by_global_norm(gradients, settings.largest_gradient_norm))
        return loss

    compiled: Callable[..., Tensor] = ms.jit(step)
    return compiled


def scores(network: nn.Cell, tokenizer: Tokenizer, task: SequenceTask) -> dict[str, float]:
    """The fraction of answers that greedy decoding gives without any error."""
    kinds = {
        f"{task.name}, held out": cases_of(task, held_out(task)),
        f"{task.name}, seen": cases_of(task, seen(task)),
        INCREASING.name: cases_of(INCREASING, held_out(INCREASING)),
    }
    return {kind: fraction_right(network, tokenizer, Shape.positions, cases) for kind, cases in kinds.items()}


if __name__ == "__main__":
    main()
