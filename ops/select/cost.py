"""What TokenSelect costs: a few operations a row, and one copy of the rows it keeps; nothing beside a linear layer."""

from attenuator.ops.cost import NegligibleCost

COST = NegligibleCost()
