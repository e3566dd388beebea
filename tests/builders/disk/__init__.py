"""Faults of a disk: every call that changes one, recorded, failing in turn, and replayed up to a crash."""
