"""Writes tests/numerics/fixtures/decoding_*.json.xz: what transformers decodes, token for token.

Run once for each set, with a Python that has torch and the release that still carries its strategies:

    main         transformers 4.57.1: greedy and beam search (vectorised) with every logits processor
    group_beam   transformers 4.56.2: the last release with group beam search in its own code
    contrastive  transformers 4.55.4: the last release with contrastive search in its own code

Later releases load the strategies from a hub. The tests need neither torch nor these releases. A prompt whose
outcome hangs on less than LEAST_GAP, or turns with noise of the size of rounding errors, is no case: the next
one is tried, and how many were refused is printed.

Where transformers does other than MindBatch: its group beam search names the first end token for whichever
ended a hypothesis (`any_end` marks such cases), and forced_bos_token_id only works on prompts of one token.
Groups of beams that are done count as going on with the padding token, which is the first end token here,
as it is there unless another is given. Two of its errors are kept out, see decoding_reference.py:
encoder_repetition_penalty that spares beams, and scores that are no numbers.
"""

import argparse
import json
import lzma
import random
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import torch
import transformers
from model_folders import descriptions, write_folder
from tokenizers import Tokenizer
from transformers import PreTrainedModel

from decoding_plan import GREEDY_STEPS, MODELS, Material, Params, Plan, plans
from decoding_reference import decode, disturbed, load

ROOT = Path(__file__).parents[2]
FIXTURES = ROOT / "tests/numerics/fixtures"
STORIES = ROOT.parent / "shared/data/stories260K"
RELEASES = {"main": "4.57.1", "group_beam": "4.56.2", "contrastive": "4.55.4"}
LEAST_GAP = 1e-4
ATTEMPTS = 40
OPENINGS = [
    "Once upon a time",
    "Lily and Ben were at the park. They saw a big",
    "The dog was sad because",
    "One day, a little girl named Sue went to the",
    "Tom had a red ball. He liked to play with his ball. Tom",
    'The cat said, "',
    "It was a sunny day and the bird",
    "Mom gave him a",
]
"""Ours; the trained model knows simple stories only."""


class Refused(Exception):
    """The prompt gives no case; its argument says why."""


class Maker:
    """Makes cases on one model."""

    def __init__(self, name: str, model: PreTrainedModel) -> None:
        self.name, self.model = name, model
        self.vocab_size: int = model.config.vocab_size
        self.refused: Counter[str] = Counter()

    def prompt(self, source: random.Random, one_token: bool) -> list[int]:
        """Tokens to continue: text for the trained model, else random ones, some of them with a continuation
        of the model's own, which is likelier to come up again."""
        if one_token:
            return [1] if self.name == "stories260K" else [source.randrange(self.vocab_size)]
        if self.name == "stories260K":
            return self.text_tokens(source)
        start = [source.randrange(self.vocab_size) for _ in range(source.randrange(1, 14))]
        return start + (self.greedy(start)[: source.randrange(3, 9)] if source.random() < 0.5 else [])

    def text_tokens(self, source: random.Random) -> list[int]:
        """The beginning of a story."""
        tokens = Tokenizer.from_file(str(STORIES / "tokenizer.json")).encode(source.choice(OPENINGS)).ids
        return tokens[: source.randrange(3, 1 + max(3, len(tokens)))]

    def greedy(self, prompt: list[int]) -> list[int]:
        return decode(self.model, prompt, {"max_new_tokens": GREEDY_STEPS})[0][0]

    def material(self, source: random.Random, one_token: bool) -> Material:
        """A prompt with what follows it."""
        prompt = self.prompt(source, one_token)
        plain = self.greedy(prompt)
        beams = {"num_beams": 4, "num_return_sequences": 4, "max_new_tokens": GREEDY_STEPS}
        if int(transformers.__version__.split(".")[1]) < 57:
            beams |= {"early_stopping": True}
        rows = decode(self.model, prompt, beams)[0]
        met = [rows[-1][source.randrange(3, 9)], rows[0][source.randrange(6, 14)], rows[1][-1]]
        return Material(source, prompt, plain, list(dict.fromkeys(met)), self.vocab_size)

    def case(self, plan: Plan, source: random.Random) -> dict[str, Any]:
        """One case.

        Raises:
            Refused: the outcome is too close to another one, or does not show what it should.
        """
        material = self.material(source, plan.one_token)
        params: Params = {"max_new_tokens": source.randrange(10, 25), **plan.params}
        for part in plan.parts:
            params |= part(material)
        outputs, scores, gap = decode(self.model, material.prompt, params)
        if gap < LEAST_GAP:
            raise Refused("close")
        for seed in (1, 2):
            with disturbed(self.model, seed):
                again = decode(self.model, material.prompt, params)
            if again[0] != outputs:
                raise Refused("turns with noise")
        self.check_effect(plan, material.prompt, params, outputs)
        return {
            "model": self.name,
            "kind": plan.kind,
            "prompt": material.prompt,
            "params": params,
            "outputs": outputs,
            "scores": None if scores is None else [round(score, 6) for score in scores],
            "gap": float(f"{gap:.2g}"),
        }

    def check_effect(self, plan: Plan, prompt: list[int], params: Params, outputs: list[list[int]]) -> None:
        """Refuses a case that would be the same without the parameter it is there for."""
        for name in plan.effect:
            without = {key: value for key, value in params.items() if key != name}
            if name == "penalty_alpha":
                without.pop("top_k")
            if name == "diversity_penalty":
                without[name] = params[name] / 10
            if decode(self.model, prompt, without)[0] == outputs:
                raise Refused("without effect")

    def cases(self, name: str) -> list[dict[str, Any]]:
        """All cases of a set, each from the first prompt that gives one."""
        found = []
        for number, plan in enumerate(plans(name, self.name)):
            for attempt in range(ATTEMPTS):
                source = random.Random(f"{name} {self.name} {number} {attempt}")
                try:
                    found.append(self.case(plan, source))
                    break
                except Refused as reason:
                    self.refused[str(reason)] += 1
            else:
                self.refused["plans given up"] += 1
                print(f"given up: {self.name} {plan.kind} {plan.params} {plan.effect} {plan.names}")
        return found


def make_model(name: str) -> PreTrainedModel:
    """The model of a case."""
    if name == "stories260K":
        return load(STORIES)
    with tempfile.TemporaryDirectory() as folder:
        write_folder(Path(folder), descriptions()[name])
        return load(Path(folder))


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("set", choices=RELEASES)
    arguments = parser.parse_args()
    if transformers.__version__ != RELEASES[arguments.set]:
        parser.error(f"needs transformers {RELEASES[arguments.set]}, this is {transformers.__version__}")
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    found = []
    for name in MODELS:
        maker = Maker(name, make_model(name))
        cases = maker.cases(arguments.set)
        smallest = min(case["gap"] for case in cases)
        print(f"{name}: {len(cases)} cases, smallest gap {smallest}, refused {dict(maker.refused)}")
        found += cases
    if arguments.set == "group_beam":
        for case in found:
            case["any_end"] = len(case["params"].get("eos_token_id", [])) > 1
    text = json.dumps({"transformers": transformers.__version__, "cases": found}, separators=(",", ":"))
    path = FIXTURES / f"decoding_{arguments.set}.json.xz"
    path.write_bytes(lzma.compress(text.encode(), preset=9))
    print(f"{path}: {len(found)} cases, {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
