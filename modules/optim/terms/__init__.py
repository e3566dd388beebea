"""The fields that optimizers share: each is declared here once and used by those that have it."""
