"""Programs that measure: `python -m benchmarks.operators`, `.models`, `.run_all`."""
