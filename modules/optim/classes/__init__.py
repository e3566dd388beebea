"""Optimizers for which a package alone does not do: subclasses of the packages' classes, and our own."""
