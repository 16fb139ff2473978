"""MindBatch for lm-evaluation-harness, which is the extra `lm-eval`."""

MODEL = "mindbatch"
"""The name of the model class in the harness."""
