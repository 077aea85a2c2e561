"""BigBird: block-sparse softmax attention over global, neighbouring and random blocks of keys."""
