"""Timestep distributions: how often each timestep of the noise schedule is trained."""
