"""Stable Diffusion 1.x and 2.x."""
