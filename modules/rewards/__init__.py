"""Rewards: the models and functions that score the images which a method samples."""
