"""Continuous batching: from requests to tokens and text."""
