"""Replicas of a model in processes of their own, and the engine that dispatches requests to them."""
