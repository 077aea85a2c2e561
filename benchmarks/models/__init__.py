"""Whole models: time, agreement and accuracy; `python -m benchmarks.models` is the main one."""
