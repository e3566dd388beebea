"""The models behind the records. Not imported by the window."""
