"""Linear attention: a feature map in place of softmax, linear in length."""
