"""What the programs for a CUDA device share: the device, its clocks, its contenders."""
