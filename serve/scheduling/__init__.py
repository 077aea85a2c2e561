"""Order of the work: queue, fairness, lanes, predicted times."""
