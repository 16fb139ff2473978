"""Predict YAMLs of MindFormers become configurations: the table of their keys, and its application."""
