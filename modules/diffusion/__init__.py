"""Noise schedules, forward processes, loss weights and samplers."""
