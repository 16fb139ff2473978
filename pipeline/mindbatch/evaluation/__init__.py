"""Evaluation of what was generated: metrics, comparisons of strategies, reports."""
