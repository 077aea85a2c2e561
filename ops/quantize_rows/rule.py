"""How a row is rounded; the kernel, the reference, the function in standard nodes and export read it."""

HIGH = 127  # the largest magnitude of a row
ZERO_POINT = 128  # what stands for 0
# Added to every scale: lost in rounding unless the row is zero (or subnormal), whose scale must not be 0.
TINY = 1e-30
