"""The reward models, one file each."""
