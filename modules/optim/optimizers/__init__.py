"""The optimizers, one file for each kind: their settings and their records."""
