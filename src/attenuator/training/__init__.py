"""Training with the attentions that are served: gradients, and how other libraries' models come to them.

A folder for each operator: `settings.py` (`Settings`, whose fields are named as the operator's knobs and attributes;
`starting` and `SEARCHED`, where `adapt` begins and what it searches), `attention_interface.py` (transformers' models),
`encoder.py` (the own encoder), `fitting.py` (what `adapt` asks of it). Needs the extra `train`; nothing that serves
imports it. Runs, data and checkpoints are in `attenuator.tuning`.
"""

# The field of what a checkpoint's config says under the operators' domain that names the operator, by its key.
ATTENTION = "attention"
