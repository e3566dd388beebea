"""Counts what a training step asks of a GPU, without one: kernels, memory traffic and casts."""
