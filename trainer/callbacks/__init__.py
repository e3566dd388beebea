"""The callbacks of a run, one per file: metrics, validation, sampling, saving, backups and rewards."""
