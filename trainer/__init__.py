"""The training engine: runs, steps, callbacks, backups and events."""
