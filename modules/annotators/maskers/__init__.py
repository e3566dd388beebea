"""The maskers, one record per file. Torch-free."""
