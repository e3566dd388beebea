"""`python -m benchmarks gpu`: checks on a GPU what the program promises for GPUs, in stages, with a report."""
