"""The rewards, one record each, torch-free. One that loads a model has its factory in `modules/rewards/models/`."""
