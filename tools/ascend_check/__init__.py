"""For the first run on an NPU: fused operators and tiny models, compared with what a CPU computed."""
