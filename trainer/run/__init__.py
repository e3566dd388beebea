"""Running a training: setup, execution, and how it ends."""
