"""MCA: softmax attention whose value projection is sampled."""
