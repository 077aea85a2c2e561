"""The command `attenuator compare`: which attention suits a checkpoint, at which setting, on a user's texts.

Every attention that export can give the checkpoint is exported once, run on the texts at a thinned grid of its knobs,
and timed beside the exact model. Which attentions there are is for the operators' registry to say.

- `candidates`: what the checkpoint can be exported as, and what it cannot have without training.
- `data`: the texts, their labels, and ranges of lengths.
- `grid`: the settings of a bundle that are run.
- `partial`: what an interrupted run has measured.
- `measuring`: answers and times of one bundle.
- `judging`: intervals, frontiers, and the choice for each range of lengths.
- `report`, `plot`: table and sentences, SVG.
- `pipeline`: all of it.
"""
