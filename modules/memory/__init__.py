"""Checkpointing, offloading, placement of model parts on devices, and the guard that checks both."""
