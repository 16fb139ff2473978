"""Describes, builds, loads and runs the inference models of MindFormers 1.9."""
