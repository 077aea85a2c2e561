"""The command `attenuator tune`: one bundle from a checkpoint and a file of texts, as fast as the texts allow.

It asks of the other commands what each of them knows: `export` chooses how tokens are selected by one part of the
texts, in fp32 and in int8; `calibrate` measures both bundles on the other part; the faster one that keeps the agreement
is the result.

- `settings`: flags and help.
- `texts`: the file, without duplicates, in two parts; how many fit into the time.
- `pipeline`: the steps, each of which an interrupted run leaves behind for the next.
- `speed`: texts a second of every setting, in turns.
- `result`: what came out, in numbers and in sentences.
- `page`: the same as `report.html`.
"""
