"""Training with the attentions that are served: gradients, and how other libraries' models come to them.

A folder for each operator. Needs the extra `train`; nothing that serves imports it.
"""
