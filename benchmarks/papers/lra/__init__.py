"""Long Range Arena's tasks and how its models are trained: `benchmarks.papers.long_range_arena` runs them."""
