"""Gives the tiny GPT-2 of train_tiny.py positions from 256 to 2047, and changes nothing before them.

python examples/training/lengthen_tiny.py examples/tiny_gpt2 [--steps N] [--seed 0]

Every tensor and the first 256 rows of the position table stay as they are, bit for bit, and attention
looks back only; so within 256 tokens the model computes what it did. The new rows are the sines and
cosines of their positions times one matrix, the only thing that is trained: all positions share it, so
each document teaches every row (the rows by themselves learn far slower: each sees one token of a
sequence). On a folder that has been lengthened already it begins again from the first 256 rows.
"""

# mypy: allow-subclassing-any

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import mindspore as ms
import numpy as np
import numpy.typing as npt
from mindspore import Parameter, Tensor, nn, ops
from safetensors.numpy import load_file
from tokenizers import Tokenizer

from tiny_folder import Weights, save_folder, versions
from tiny_network import INITIAL_STD, Shape, TinyGPT2, waves
from tiny_packing import PADDING, Packer, score_packed
from tiny_scores import score
from train_tiny import learning_rates

POSITIONS = 2048
NEAR = Shape.positions  # the rows that train_tiny.py trained
TABLE = "transformer.wpe.weight"
SECOND_STAGE = "lengthening"  # its key in training.json

REGIONS = {
    "0 to 255": range(NEAR),
    "256 to 1023": range(NEAR, 1024),
    "1024 to 2047": range(1024, POSITIONS),
}
_WAVE_HEIGHT = INITIAL_STD * 2**0.5  # of the waves that the first stage begins with

REPORT_EVERY = 20
SCORED_ROWS = 16
SCORED_SEED = 2**32  # outside the seeds that the command line takes, so never the text of the training

Table = npt.NDArray[np.float32]  # [positions, width]


@dataclass(frozen=True)
class Settings:
    """How the new rows are trained."""

    seed: int = 0
    steps: int = 360
    sequences_per_step: int = 1
    warmup_steps: int = 15
    peak_learning_rate: float = 3e-3
    final_learning_rate: float = 6e-5
    beta2: float = 0.98
    largest_gradient_norm: float = 1.0


class _Lengthened(nn.Cell):
    """Tokens and labels int32 [B, T] to the mean loss over the labels, with `map` making the far rows."""

    def __init__(self, network: TinyGPT2, near: Table, start: Table) -> None:
        super().__init__()
        self.network = network
        self.near = Tensor(near)
        self.features = Tensor(_features())
        self.map = Parameter(Tensor(start), name="map")

    def construct(self, tokens: Tensor, labels: Tensor) -> Tensor:
        logits = self.network.with_positions(tokens, self.table())
        return ops.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1))

    def table(self) -> Tensor:
        """Every row of the position table [POSITIONS, W]."""
        return ops.concat([self.near, ops.matmul(self.features, self.map)], 0)


def main() -> None:
    """Trains the new rows, scores them against simpler choices, and writes the folder again."""
    arguments = parse_arguments()
    settings = Settings(seed=arguments.seed, steps=arguments.steps)
    ms.set_device("CPU")
    ms.set_context(mode=ms.GRAPH_MODE)
    ms.set_seed(settings.seed)

    folder: Path = arguments.folder
    weights = load_file(folder / "model.safetensors")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    record = json.loads((folder / "training.json").read_text())
    shape = Shape(**{**record["shape"], "positions": POSITIONS})
    near = weights[TABLE][:NEAR]
    network = frozen_network(shape, weights, near)
    packer = Packer(tokenizer)

    began = time.perf_counter()
    trained, curve = train(network, near, packer, settings)
    seconds = time.perf_counter() - began

    tables = {
        "the first 256 rows again": _repeated(near),
        "the untrained map": _untrained(near),
        "trained": trained,
    }
    scored = packer.rows(SCORED_ROWS, POSITIONS, np.random.default_rng(SCORED_SEED))
    scores = {}
    for name, table in tables.items():  # the trained rows come last and stay
        network.transformer.wpe.weight.set_data(Tensor(table))
        scores[name] = score_packed(network, scored, REGIONS)
        print(f"{name}: {json.dumps(scores[name])}", flush=True)
    weights[TABLE] = network.transformer.wpe.weight.asnumpy()
    record[SECOND_STAGE] = {
        "positions": POSITIONS,
        "settings": asdict(settings),
        "parameters": sum(array.size for array in weights.values()),
        "trained parameters": int(_features().shape[1] * shape.width),
        "seconds": round(seconds, 1),
        "loss": curve,
        "right": score(network, tokenizer, NEAR),
        "packed": scores,
        "versions": versions(),
    }
    save_folder(folder, weights, tokenizer, shape, record)
    print(f"wrote {folder} after {seconds:.0f} s of training")


def parse_arguments() -> argparse.Namespace:
    """The command line; exit status 2 for a folder without training.json, no steps or a seed out of range."""
    parser = argparse.ArgumentParser(description="Give the tiny GPT-2 of train_tiny.py 2,048 positions.")
    parser.add_argument("folder", type=Path, help="the model's folder; its files are replaced")
    parser.add_argument("--steps", type=int, default=Settings.steps, help="optimiser steps (%(default)s)")
    parser.add_argument("--seed", type=int, default=Settings.seed, help="of the text (%(default)s)")
    arguments = parser.parse_args()
    if not (arguments.folder / "training.json").is_file():
        parser.error(f"{arguments.folder}: no training.json there; train_tiny.py writes such a folder")
    if arguments.steps < 1:
        parser.error(f"--steps {arguments.steps}: must be at least 1")
    if not 0 <= arguments.seed < 2**32:
        parser.error(f"--seed {arguments.seed}: must be from 0 to {2**32 - 1}")
    return arguments


def frozen_network(shape: Shape, weights: Weights, near: Table) -> TinyGPT2:
    """The network with these weights, none of which learns."""
    network = TinyGPT2(shape, np.random.default_rng(0))
    for name, parameter in network.parameters_dict().items():
        parameter.set_data(Tensor(_untrained(near) if name == TABLE else weights[name]))
        parameter.requires_grad = False
    return network


def train(
    network: TinyGPT2, near: Table, packer: Packer, settings: Settings
) -> tuple[Table, list[dict[str, float]]]:
    """The whole position table, and the curve: the mean loss, in nats a token, since the point before.

    Only tokens of answers from position NEAR on count: no row in training bears on those before.
    """
    lengthened = _Lengthened(network, near, _starting_map(near))
    step = training_step(lengthened, settings)
    rng = np.random.default_rng(settings.seed)
    curve: list[dict[str, float]] = []
    losses: list[float] = []
    for number in range(1, settings.steps + 1):
        packed = packer.rows(settings.sequences_per_step, POSITIONS, rng)
        packed.labels[:, :NEAR] = PADDING
        losses.append(float(step(Tensor(packed.tokens), Tensor(packed.labels))))
        if number % REPORT_EVERY == 0 or number in (1, settings.steps):
            curve.append({"step": number, "loss": round(sum(losses) / len(losses), 5)})
            print(f"step {number:4d} of {settings.steps}: loss {curve[-1]['loss']:.5f}", flush=True)
            losses.clear()
    far = _features() @ lengthened.map.asnumpy()
    return np.concatenate([near, far]), curve


def training_step(lengthened: _Lengthened, settings: Settings) -> Callable[[Tensor, Tensor], Tensor]:
    """One compiled graph: forward, backward, clipping and Adam; tokens and labels to their loss."""
    optimizer = nn.Adam(
        [lengthened.map],
        learning_rate=learning_rates(
            settings.steps, settings.warmup_steps, settings.peak_learning_rate, settings.final_learning_rate
        ),
        beta2=settings.beta2,
    )

    def loss_of(tokens: Tensor, labels: Tensor) -> Tensor:
        return lengthened(tokens, labels)

    loss_and_gradients = ms.value_and_grad(loss_of, None, optimizer.parameters)

    def step(tokens: Tensor, labels: Tensor) -> Tensor:
        loss, gradients = loss_and_gradients(tokens, labels)
        optimizer(ops.clip_by_global_norm(gradients, settings.largest_gradient_norm))
        return loss

    compiled: Callable[[Tensor, Tensor], Tensor] = ms.jit(step)
    return compiled


def _features() -> Table:
    """The sines and cosines of each far position, and a one: [POSITIONS - NEAR, width + 1]."""
    far = waves(POSITIONS, Shape.width)[NEAR:] / _WAVE_HEIGHT
    features: Table = np.concatenate([far, np.ones((len(far), 1))], axis=1).astype(np.float32)
    return features


def _starting_map(near: Table) -> Table:
    """The map with which far rows are their waves plus the mean of what the near rows learnt."""
    learnt = near - waves(NEAR, Shape.width)
    start: Table = np.concatenate([np.eye(Shape.width) * _WAVE_HEIGHT, learnt.mean(0)[None]]).astype(
        np.float32
    )
    return start


def _untrained(near: Table) -> Table:
    return np.concatenate([near, _features() @ _starting_map(near)])


def _repeated(near: Table) -> Table:
    return np.tile(near, (POSITIONS // NEAR, 1))


if __name__ == "__main__":
    main()
