"""The optimizers, one file each: its settings, and the record of what others need to know of it."""
