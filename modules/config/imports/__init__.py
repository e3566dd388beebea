"""Configs of other programs, and the settings inside files they made, as configs of ours. Torch-free."""
