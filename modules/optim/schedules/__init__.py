"""The learning rate schedules: the settings, the curve and the record of each, in files by kind."""
