"""The optimizers, one file each: its settings and its record."""
