"""The signs by which files are recognised, one file per sort of thing. Torch-free."""
