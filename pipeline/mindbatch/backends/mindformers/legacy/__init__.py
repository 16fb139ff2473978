"""MindFormers' legacy models: networks that MindSpore's parallel compiler cuts over ranks of NPUs."""
