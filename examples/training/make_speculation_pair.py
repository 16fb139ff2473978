"""Makes a pair of models for speculative decoding: a large GPT-2 whose guesser is the shipped tiny one.

python examples/training/make_speculation_pair.py --output /tmp/pair/large [--steps N] [--seed 0]

Run with a Python that has torch and transformers; about ten minutes on one core. The large model (12 layers,
width 480, 33 million parameters) begins as a function that equals the tiny one's (every width is repeated, as
in Chen, Goodfellow, Shlens, "Net2Net", ICLR 2016, and added layers add nothing), is shaken by noise so that
the copies may part, and then learns the same text. It is saved as a Hugging Face folder; the tiny model is
the assistant that it was grown from. tools/bench speculation measures the pair.
"""

import argparse
import json
import math
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer
from transformers import GPT2Config, GPT2LMHeadModel

from tiny_corpus import training_countings, training_sums

SMALL = Path(__file__).parents[1] / "tiny_gpt2"
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")
PADDING = -100  # the label that the loss leaves out
REPORT_EVERY = 10

Draw = Callable[[], torch.Tensor]


@dataclass(frozen=True)
class Settings:
    """How the large model is grown and trained."""

    seed: int = 0
    steps: int = 150
    widening: int = 5
    layers: int = 12
    noise: float = 0.05  # of a matrix's own standard deviation
    initial_std: float = 0.02  # of the added layers
    countings_per_step: int = 5
    sums_per_step: int = 64
    warmup_steps: int = 10
    peak_learning_rate: float = 1e-4
    weight_decay: float = 0.01
    largest_gradient_norm: float = 1.0


def main() -> None:
    """Grows the model, trains it, measures how often the two agree, and writes the folder."""
    arguments = parse_arguments()
    settings = Settings(seed=arguments.seed, steps=arguments.steps)
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(settings.seed)
    rng = np.random.default_rng(settings.seed)
    small = GPT2LMHeadModel.from_pretrained(SMALL).eval()
    large = GPT2LMHeadModel(large_config(small.config, settings))
    grow(small, large, settings)
    tokenizer = Tokenizer.from_file(str(SMALL / "tokenizer.json"))
    end = tokenizer.token_to_id("<|endoftext|>")
    texts = [
        [[*tokenizer.encode(text).ids, end] for text in texts]
        for texts in (training_countings(), training_sums())
    ]
    held = [batch_of(documents[:: max(1, len(documents) // 24)]) for documents in texts]
    began = time.perf_counter()
    record: dict[str, object] = {"settings": asdict(settings), "before": compare(small, large, held)}
    print(f"before noise and training: {record['before']}", flush=True)
    shake(large, settings)
    record["shaken"] = compare(small, large, held)
    draws = [
        drawing(documents, count, rng)
        for documents, count in zip(texts, (settings.countings_per_step, settings.sums_per_step), strict=True)
    ]
    record["loss"] = train(large, draws, settings)
    record["after"] = compare(small, large, held)
    record["seconds"] = round(time.perf_counter() - began, 1)
    record["parameters"] = sum(parameter.numel() for parameter in large.parameters())
    print(f"shaken: {record['shaken']}\nafter: {record['after']}", flush=True)
    save(arguments.output, large, record)
    print(f"wrote {arguments.output} after {record['seconds']} s")


def parse_arguments() -> argparse.Namespace:
    """The command line; fewer than one step or thread is a usage error (exit status 2)."""
    parser = argparse.ArgumentParser(description="Grow and train a large model beside the shipped tiny one.")
    parser.add_argument("--output", type=Path, required=True, help="folder to write the large model to")
    parser.add_argument("--steps", type=int, default=Settings.steps, help="optimiser steps (%(default)s)")
    parser.add_argument("--seed", type=int, default=Settings.seed, help="of noise and text (%(default)s)")
    parser.add_argument("--threads", type=int, default=1, help="of torch (%(default)s)")
    arguments = parser.parse_args()
    if arguments.steps < 1 or arguments.threads < 1:
        parser.error(f"--steps {arguments.steps} --threads {arguments.threads}: must be at least 1")
    return arguments


def large_config(small: GPT2Config, settings: Settings) -> GPT2Config:
    """The small model's configuration with more layers, and more heads of the same size."""
    changes = {
        "n_embd": small.n_embd * settings.widening,
        "n_head": small.n_head * settings.widening,
        "n_layer": settings.layers,
        "initializer_range": settings.initial_std,
    }
    return GPT2Config(**(small.to_diff_dict() | changes))


@torch.no_grad()
def grow(small: GPT2LMHeadModel, large: GPT2LMHeadModel, settings: Settings) -> None:
    """Gives the large model the small one's function: the same logits up to rounding."""
    times = settings.widening
    spacing = settings.layers // small.config.n_layer
    taken = {place * spacing: layer for place, layer in enumerate(small.transformer.h)}
    for place, block in enumerate(large.transformer.h):
        if place not in taken:  # what it adds to the residual stream is nothing yet
            block.attn.c_proj.weight.zero_()
            block.mlp.c_proj.weight.zero_()
            continue
        source = dict(taken[place].named_parameters())
        for name, parameter in block.named_parameters():
            parts = 3 if "c_attn" in name else 1  # queries, keys and values lie side by side
            parameter.copy_(widened(source[name], times, parts))
    for name in ("wte", "wpe"):
        table = getattr(small.transformer, name).weight
        getattr(large.transformer, name).weight.copy_(table.tile(1, times))
    # The head is tied to wte and sums over `times` copies.
    large.transformer.ln_f.weight.copy_(small.transformer.ln_f.weight.tile(times) / times)
    large.transformer.ln_f.bias.copy_(small.transformer.ln_f.bias.tile(times) / times)


def widened(values: torch.Tensor, times: int, parts: int) -> torch.Tensor:
    """Outputs repeated `times`, each of `parts` by itself; a matrix's inputs too, each then counting less."""
    outputs = values.unflatten(-1, (parts, -1)).tile(*(1,) * values.ndim, times).flatten(-2)
    return outputs.tile(times, 1) / times if values.ndim == 2 else outputs


@torch.no_grad()
def shake(model: GPT2LMHeadModel, settings: Settings) -> None:
    """Adds noise to every matrix, so that what was repeated can learn different things."""
    for parameter in model.parameters():
        if parameter.ndim == 2:
            parameter += torch.randn_like(parameter) * parameter.std() * settings.noise


def batch_of(documents: list[list[int]]) -> torch.Tensor:
    """One row a document, padded to the longest: [documents, tokens]."""
    rows = torch.full((len(documents), max(map(len, documents))), PADDING)
    for row, tokens in zip(rows, documents, strict=True):
        row[: len(tokens)] = torch.tensor(tokens)
    return rows


def drawing(documents: list[list[int]], count: int, rng: np.random.Generator) -> Draw:
    """Draws `count` documents with replacement."""
    return lambda: batch_of([documents[place] for place in rng.integers(len(documents), size=count)])


def train(model: GPT2LMHeadModel, draws: list[Draw], settings: Settings) -> list[dict[str, float]]:
    """Runs AdamW in place and returns its curve: the mean loss, in nats a token, since the point before."""
    groups = [
        {
            "params": [p for p in model.parameters() if (p.ndim == 2) == matrices],
            "weight_decay": settings.weight_decay * matrices,
        }
        for matrices in (True, False)
    ]
    optimizer = torch.optim.AdamW(groups, lr=settings.peak_learning_rate, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate(step, settings))
    curve: list[dict[str, float]] = []
    losses: list[float] = []
    model.train()
    for number in range(1, settings.steps + 1):
        loss = torch.stack([loss_of(model, draw()) for draw in draws]).sum()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), settings.largest_gradient_norm)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        losses.append(loss.item())
        if number % REPORT_EVERY == 0 or number in (1, settings.steps):
            curve.append({"step": number, "loss": round(sum(losses) / len(losses), 5)})
            print(f"step {number:4d} of {settings.steps}: loss {curve[-1]['loss']:.5f}", flush=True)
            losses.clear()
    model.eval()
    return curve


def rate(step: int, settings: Settings) -> float:
    """A share of the peak rate: a linear warm-up, then half a cosine."""
    warmup = min(1.0, (step + 1) / settings.warmup_steps)
    return warmup * 0.5 * (1 + math.cos(math.pi * step / settings.steps))


def loss_of(model: GPT2LMHeadModel, rows: torch.Tensor) -> torch.Tensor:
    """Mean loss over the tokens of rows [B, T]."""
    loss: torch.Tensor = model(rows.clamp(min=0), labels=rows).loss
    return loss


@torch.no_grad()
def compare(
    small: GPT2LMHeadModel, large: GPT2LMHeadModel, held: list[torch.Tensor]
) -> dict[str, list[float]]:
    """For each batch: the losses of both, the share of places where their likeliest tokens agree, and the
    sum of min(p, q), which is how often a token that the small one draws would be accepted."""
    found: dict[str, list[float]] = {"small": [], "large": [], "agree": [], "overlap": []}
    for rows in held:
        inside = rows[:, 1:] != PADDING
        logits = [model(rows.clamp(min=0)).logits[:, :-1][inside] for model in (small, large)]
        for name, values in zip(("small", "large"), logits, strict=True):
            found[name].append(float(torch.nn.functional.cross_entropy(values, rows[:, 1:][inside])))
        ours, theirs = (values.softmax(-1) for values in logits)
        found["agree"].append(float((ours.argmax(-1) == theirs.argmax(-1)).float().mean()))
        found["overlap"].append(float(torch.minimum(ours, theirs).sum(-1).mean()))
    return {name: [round(value, 4) for value in values] for name, values in found.items()}


def save(folder: Path, model: GPT2LMHeadModel, record: dict[str, object]) -> None:
    """Writes the folder: what transformers writes, the small model's tokenizer, and how the training went."""
    model.save_pretrained(folder)
    for name in TOKENIZER_FILES:
        shutil.copyfile(SMALL / name, folder / name)
    partial = folder / "training.json.partial"
    partial.write_text(json.dumps(record, indent=2) + "\n")
    os.replace(partial, folder / "training.json")


if __name__ == "__main__":
    main()
