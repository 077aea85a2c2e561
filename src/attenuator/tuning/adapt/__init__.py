"""`attenuator adapt`: a checkpoint that was trained with softmax attention learns one that is cheaper on long texts.

The model teaches itself: as it is, it is the teacher; with the other attention, the student. No labels are needed.

- `recording`: what the attention of each layer takes and gives in a forward pass.
- `distillation`: the loss, and the schedule from exact attention to the sampled one that will be served.
- `measuring`: agreement and accuracy over values of the knob.
- `pipeline`: all of it, from two folders and a file of texts.
"""
