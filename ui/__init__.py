"""The window: shows the config and the run, and asks the user."""
