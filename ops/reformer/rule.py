"""What ReformerAttention's kernels, reference and cost know alike."""


def is_exact(tokens: int, chunk_size: int, num_rounds: int) -> bool:
    """Whether every row sees every key: so asked for, or in rounds that would meet as many keys as there are."""
    return num_rounds == 0 or 2 * chunk_size * num_rounds >= tokens
