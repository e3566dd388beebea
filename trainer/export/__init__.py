"""Exporting the trained weights of a run as files that other programs read."""
