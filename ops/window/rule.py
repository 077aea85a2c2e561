"""What WindowAttention's reference and cost know alike; ops/common/window.h has it in C++."""


def narrowed(trained_window: int, window: int) -> int:
    """The window that a sequence gets: at most the trained one, which 0 stands for; without a trained one none."""
    return min(trained_window, window) if window else trained_window
