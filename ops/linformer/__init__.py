"""Linformer attention: keys and values of a sequence projected to a fixed number of rows."""
