"""What a run leaves in its folder: events and backups. Torch-free, for the window reads them too."""
