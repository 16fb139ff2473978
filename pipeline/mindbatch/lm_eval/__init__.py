"""MindBatch for lm-evaluation-harness, which is the extra `lm_eval`."""

MODEL = "mindbatch"
"""The name of the model class in the harness."""
MISSING = (
    "lm-evaluation-harness is not installed: pip install -e '.[lm_eval]' -c constraints.txt in the checkout"
)
