"""Runs on another machine over SSH: its record, the connection, what is sent, and the copy of the run's folder."""
