"""What DequantizeProduct costs: a graph's work counts it as any node that writes as many values (`runtime/work.py`)."""

from attenuator.ops.cost import NegligibleCost

COST = NegligibleCost()
