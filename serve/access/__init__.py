"""API keys: who may ask, how often, and up to which knob values."""
