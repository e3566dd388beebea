"""The files in a run's folder: events, backups and the lock. The window reads them, too."""
