"""Filling the caches and loading batches."""
