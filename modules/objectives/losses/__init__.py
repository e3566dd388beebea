"""The losses of single elements, one record each, and their weighted sum."""
