"""Jobs besides training, one record each: its settings are one Section, from which all forms of it are generated."""
