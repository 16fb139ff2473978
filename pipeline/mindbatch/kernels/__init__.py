"""What layers are computed with: C++ on CPU, MindSpore operators, Ascend's fused ones."""
