"""Counts the kernels, memory traffic and casts of a training step on a GPU, without a GPU."""
