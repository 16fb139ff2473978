"""Sums by the shipped model in a Ray Data pipeline: `python examples/ray/pipeline.py`.

It runs in the cluster of RAY_ADDRESS, or in one that Ray starts on this machine.
"""

import ray

from mindbatch.ray import Generate


def main() -> None:
    """Prints a line for each row."""
    rows = [{"id": f"sum-{number}", "question": f"{number} + 2 ="} for number in range(8)]
    answers = ray.data.from_items(rows).map_batches(
        Generate,
        fn_constructor_kwargs={
            "path": "shipped:examples/tiny_gpt2",
            "data": {"key_column": "id", "prompt_column": "question"},
            "decoding": {"max_new_tokens": 8},
        },
        batch_size=4,
        compute=ray.data.ActorPoolStrategy(size=1),
    )
    for row in sorted(answers.take_all(), key=lambda row: row["key"]):
        text = row["error"] or row["generations"][0]["text"]
        print(row["key"], row["prompt"], text)


if __name__ == "__main__":
    main()
