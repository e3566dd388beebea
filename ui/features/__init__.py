"""What the window can do, one folder each; the features do not import each other."""
