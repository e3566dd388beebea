"""Benchmarks of the program on this machine: ratios to a bare loop in the same process. No test asserts their times."""
