"""The dry run: tries every branch of a run once before its first step, without changing anything."""
