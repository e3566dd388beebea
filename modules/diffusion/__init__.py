"""Noise schedules, forward processes and loss weightings."""
