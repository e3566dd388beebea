"""Writing what a run trained as files that other programs read."""
