"""Optimizers, learning rate schedules, parameter groups, averages of weights."""
