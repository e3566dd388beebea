"""Jobs besides training, one record each with a Section of settings, from which command line and form are generated."""
