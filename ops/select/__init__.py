"""Selection of the rows of each sequence of a packed batch that matter most."""
