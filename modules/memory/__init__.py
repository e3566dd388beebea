"""Checkpointing, offloading, placement of parts on devices, and the guard that watches both."""
