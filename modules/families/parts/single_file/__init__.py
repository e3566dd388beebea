"""Checkpoints of one file in the original (CompVis, Stability AI) layout, and back to diffusers' parts."""
