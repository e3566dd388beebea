"""Child processes: training runs and jobs, with events and commands as lines of JSON."""
