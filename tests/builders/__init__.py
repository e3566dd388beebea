"""Tiny random-weight models, drawn images and configs for the tests."""
