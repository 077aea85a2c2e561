"""The service under load, and what it adds to the model's own time."""
