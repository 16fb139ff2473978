"""MindSpore's parallel strategies, between their files and placements."""
