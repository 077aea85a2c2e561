"""How many rows of each sequence of a packed batch a selection keeps."""
