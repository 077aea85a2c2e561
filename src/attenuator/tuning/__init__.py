"""Training of classifiers: `attenuator train`, and what other commands that train share. Needs the extra `train`.

Loops, schedules, checkpoints and logs are those of `transformers.Trainer`. Nothing that serves imports this folder;
`attenuator.training` below it has the attentions themselves.

- `settings.RunSettings` are the flags that such commands share, `choices` those of the attentions: `CHOICES`,
  `REPLACEMENTS`, `with_attention_settings`, `changes_of`. Neither imports PyTorch.
- `data.read(path, columns)` reads texts and their labels, `data.split` holds some of them out, `data.encode` tokenizes.
- `checkpoints.load(source, attention, ...)` is a model to train, a `Trainable`, whose `save` writes what export takes.
  Its `model` takes padded batches `(input_ids, attention_mask, token_type_ids, labels)` and returns logits and loss,
  also where it is the project's own encoder; within `attention.exact(trainable.inner)` it computes the exact value.
- `batches.Rows`, `batches.LengthBatches`, `batches.Collator`: tokens to batches; `batches.predict` runs a model
  on them.
- `plan.Plan` is what a run does, `plan.plan_of(settings, folder)` that of a command.
- `run.run(trainable, rows, held_out, plan)` trains: progress, estimate of the time, deadline, early stop, Ctrl-C and
  `--resume`. Another loss is a subclass of `run.Trainer` that overrides `compute_loss`.
- `figures.figures` counts what is right on texts held out.
- `output.OutputFolder` is the folder that a run writes: refuses one in use, says what it was begun with, ends it.
"""
