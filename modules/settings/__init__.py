"""What a setting is: its record, its values and what does not fit. Torch-free."""
