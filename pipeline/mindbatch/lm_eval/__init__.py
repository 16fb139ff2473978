"""MindBatch for lm-evaluation-harness, which is the extra `lm-eval`."""

MODEL = "mindbatch"
"""The name of the model class in the harness."""
MISSING = (
    "lm-evaluation-harness is not installed: pip install -e '.[lm-eval]' -c constraints.txt in the checkout"
)
