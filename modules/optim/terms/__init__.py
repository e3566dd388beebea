"""The fields that optimizers share: each is declared here once and used by the optimizers that have it."""
