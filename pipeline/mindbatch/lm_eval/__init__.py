"""MindBatch for lm-evaluation-harness, which is an extra: `pip install mindbatch[lm_eval]`."""

MODEL = "mindbatch"
"""The name of the model class in the harness."""
MISSING = "lm-evaluation-harness is not installed: pip install 'mindbatch[lm_eval]'"
