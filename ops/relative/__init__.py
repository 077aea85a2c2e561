"""Exact softmax attention whose scores also depend on how far apart two tokens stand."""
