"""Nystrom attention: softmax attention through landmarks, linear in length."""
