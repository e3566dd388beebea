"""Single-file checkpoints in the original (CompVis, Stability AI) layout: reading, writing, conversion to diffusers."""
