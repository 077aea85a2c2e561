"""Random feature attention: softmax attention over cosines by random Fourier features."""
