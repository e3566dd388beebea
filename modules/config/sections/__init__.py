"""The sections of the config; each field is declared here and nowhere else."""
