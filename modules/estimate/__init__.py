"""Estimates of a run's memory and disk space, from shapes alone: no weights are loaded."""
