"""Long-short attention: a window of keys, and a few mixtures of all of them that follow from the sequence."""
