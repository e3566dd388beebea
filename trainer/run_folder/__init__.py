"""The files in a run's folder: events, backups and the lock. Torch-free, because the window reads them too."""
