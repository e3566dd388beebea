"""The launcher: starts the program with any Python 3.11 to 3.14. Standard library only."""
