"""Pooling of each sequence of a packed batch to one row."""
