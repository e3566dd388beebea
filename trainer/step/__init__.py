"""One optimizer step after the other: the loop, the step, precision, freezing, the watchdog."""
