"""The captioners, one record per file. Torch-free."""
