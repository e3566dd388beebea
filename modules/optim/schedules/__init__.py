"""The learning rate schedules, one file each: its settings, its curve and its record."""
