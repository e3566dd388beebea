"""The judges, one file each."""
