"""The training steps: loop, stepper, precision, freezing, watchdog."""
