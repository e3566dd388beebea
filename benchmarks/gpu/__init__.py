"""`python -m benchmarks gpu`: every promise of the program about GPUs, checked on one in stages, with a report."""
