"""What a product in integers stands for, with what follows a linear layer."""
