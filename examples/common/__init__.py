"""What the training scripts of the bundled models share."""
