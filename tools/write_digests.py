"""Records the SHA-256 of every tensor of a model folder beside its weights (mindbatch.checkpoint.digests)."""

import argparse
import sys

from mindbatch.checkpoint.digests import write_digests
from mindbatch.errors import EXIT_DONE, MindBatchError


def main(arguments: list[str] | None = None) -> int:
    """Writes FOLDER/digests.json and prints its path; the exit code is 0, 1 (failed) or 2 (wrong usage)."""
    parser = argparse.ArgumentParser(
        description="Write digests.json, which is verified when the model is loaded."
    )
    parser.add_argument("folder", help="model folder with model.safetensors, or with shards and their index")
    parser.add_argument("--replace", action="store_true", help="write over an existing digests.json")
    options = parser.parse_args(arguments)
    try:
        print(write_digests(options.folder, replace=options.replace))
    except MindBatchError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return EXIT_DONE


if __name__ == "__main__":
    sys.exit(main())
