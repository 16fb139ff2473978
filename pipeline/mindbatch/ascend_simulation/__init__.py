"""MindSpore's Ascend backend without an NPU: graphs are compiled for it, and nothing is computed."""
