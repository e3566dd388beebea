"""Showing and asking: the window."""
