"""Placement of tensor elements on ranks, and the proved copies from one placement to another."""
