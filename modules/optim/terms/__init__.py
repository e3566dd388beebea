"""The parts that optimizers' records share: fields, constructor arguments, removed settings, and whole records."""
