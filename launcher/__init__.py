"""The launcher: from any Python 3.11 to 3.14 to a running program. Standard library only."""
