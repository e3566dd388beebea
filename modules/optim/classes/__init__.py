"""Optimizers: subclasses of those of packages, and our own, where a package alone does not do."""
