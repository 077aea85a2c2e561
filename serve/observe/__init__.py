"""Metrics, logs, traces and live quality."""
