"""MindFormers 1.9's inference models: described, built, loaded, and run by the engine's steps."""
