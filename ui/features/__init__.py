"""The features of the window, one folder each; the features do not import each other."""
