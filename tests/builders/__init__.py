"""Tiny random-weight models, drawn pictures and configs for the tests."""
