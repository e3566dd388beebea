"""The callbacks of a run, by subject: reports, pace, profiling, validation, sampling, saving, rewards and guards."""
