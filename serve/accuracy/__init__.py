"""The knobs that a request runs with, from caller, ceilings, goals, cost and load."""
