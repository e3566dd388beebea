"""Optimizers, learning rate schedules, parameter groups, EMA."""
