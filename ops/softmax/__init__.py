"""Exact softmax attention on packed batches."""
