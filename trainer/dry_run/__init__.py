"""Every branch of a run once, before its first step, with nothing changed."""
