"""The optimizers' settings, one file for each kin."""
