"""Benchmarks of the program on this machine: ratios to a bare loop in the same process. They never run in a test."""
