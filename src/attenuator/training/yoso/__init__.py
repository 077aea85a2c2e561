"""YOSO attention for training: the operator's own forward pass, gradients of linear memory."""
