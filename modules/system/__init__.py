"""Devices, dtypes, seeds, atomic writes, paths, logging."""
