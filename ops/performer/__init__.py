"""Performer: softmax attention by positive orthogonal random features."""
