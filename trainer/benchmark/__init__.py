"""Measuring the program on this machine, on purpose: ratios against bare code in the same process, never in a test."""
