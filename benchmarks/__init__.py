"""Benchmarks of the program, mostly ratios to bare code in the same process. No test asserts their times."""
