"""Noise schedules, forward processes and loss weights."""
