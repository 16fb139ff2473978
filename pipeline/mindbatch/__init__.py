"""Offline batch text generation with MindSpore and MindFormers."""
