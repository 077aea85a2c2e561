"""Who runs next: queue, fairness, lanes, predicted times."""
