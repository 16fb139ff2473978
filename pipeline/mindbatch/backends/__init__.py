"""Backends that run MindFormers' own models. The only package that may import mindformers."""
