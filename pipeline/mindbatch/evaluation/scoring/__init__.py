"""Scores of a model's answers: how they are read out of texts, measured, and told from chance."""
