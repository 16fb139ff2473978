"""Compares fused operators and tiny models on an NPU with results of a CPU."""
