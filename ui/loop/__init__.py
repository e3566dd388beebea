"""The loop of the window: the pump, background work, signals, and the run that the window follows."""
