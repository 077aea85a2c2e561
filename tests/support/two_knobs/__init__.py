"""A real operator with two knobs, compiled for tests only: `libattenuator_ops_two_knobs.so` holds it beside the
product's own.

`ATTENUATOR_EXTRA_OPERATORS=two_knobs` makes a process know it. One knob, `reach`, is its own; the other, `alpha`, is
McaAttention's word too, and stands for a knob that the operator got later: its input is optional.
"""
