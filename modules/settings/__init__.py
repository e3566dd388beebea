"""The settings system: records, values and validation messages."""
