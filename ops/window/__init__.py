"""Softmax attention under a window that a request may narrow."""
