"""`python -m benchmarks gpu`: checks everything that the program promises for GPUs on one, in stages, with a report."""
