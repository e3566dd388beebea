"""The callbacks of a run, one per file: metrics, dropped images, validation, sampling, saving, backups and rewards."""
