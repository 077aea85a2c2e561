"""Operators alone: time, error and memory; `python -m benchmarks.operators` is the main one."""
