"""Provider of our own models, what it shares with that of MindFormers, and that one in its package."""
