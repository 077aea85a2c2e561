"""What the `pii` bundle marks in texts that training has not seen: the tables of its README.

`python examples/pii/evaluate.py examples/bundles/pii --data DATA_FOLDER`

An entity counts where all its tokens and its kind are right, by seqeval's strict rule. `by_hand.txt` has a text a line.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from pii.texts import KINDS, LABELS, Maker, Text
from pii.train import SEED, mixed, plain_sentences, targets
from tokenizers import Encoding, Tokenizer

from attenuator.runtime import Model, Row, load

TEXTS = 1_500
Span = tuple[int, int, str]


def entities(labels: Sequence[str]) -> set[Span]:
    """What labels of tokens mark by seqeval's strict rule: a B- and the I- of its kind that follow it."""
    found, place = set[Span](), 0
    while place < len(labels):
        end = place + 1
        if labels[place].startswith("B-"):
            while end < len(labels) and labels[end] == f"I-{labels[place][2:]}":
                end += 1
            found.add((place, end, labels[place][2:]))
        place = end
    return found


def compared(model: Model, tokenizer: Tokenizer, text: Text) -> tuple[Encoding, set[Span], set[Span]]:
    """A text's tokens, what the model marks among them, and what is there."""
    encoding = tokenizer.encode(text.text)
    row = model.encode(text.text)
    [result] = model.run([Row(row.token_ids, row.type_ids, model.knobs.exact())])
    true = [LABELS[max(label, 0)] for label in targets(encoding, text.spans)]
    return encoding, entities([model.manifest.labels[label] for label in result.logits.argmax(1)]), entities(true)


def table(title: str, model: Model, tokenizer: Tokenizer, texts: Sequence[Text]) -> None:
    """Precision, recall and F1 by kind, as Markdown."""
    right, marked, there = Counter[str](), Counter[str](), Counter[str]()
    for text in texts:
        _, guessed, true = compared(model, tokenizer, text)
        for counter, each in ((right, guessed & true), (marked, guessed), (there, true)):
            counter.update([kind for *_, kind in each] + ["all"] * len(each))
    print(f"\n| {title} | precision | recall | F1 | entities |\n|---|---|---|---|---|")
    for kind in [*KINDS, "all"]:
        precision, recall = right[kind] / max(1, marked[kind]), right[kind] / max(1, there[kind])
        both = 2 * right[kind] / max(1, marked[kind] + there[kind])
        print(f"| {kind} | {precision:.3f} | {recall:.3f} | {both:.3f} | {there[kind]} |")
    nothing = [text for text in texts if not text.spans]
    false = sum(bool(compared(model, tokenizer, text)[1]) for text in nothing)
    print(f"\nOf {len(nothing)} texts with nothing to mark, {false} have a mark.")


def by_hand() -> list[Text]:
    """The texts of `by_hand.txt`, in which `[Maria](PERSON)` is to be marked."""
    texts = list[Text]()
    for line in (Path(__file__).parent / "by_hand.txt").read_text(encoding="utf-8").splitlines():
        text, spans = "", list[Span]()
        for plain, marked, kind in re.findall(r"([^\[]*)(?:\[([^\]]*)\]\((\w+)\))?", line):
            text += plain
            if kind:
                spans.append((len(text), len(text) + len(marked), kind))
            text += marked
        texts.append(Text(text, tuple(spans)))
    return texts


def main() -> None:
    """Prints the tables, and each difference in the texts written by hand."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path, help="folder of the bundle")
    parser.add_argument("--data", type=Path, required=True, help="folder of the two data sets")
    options = parser.parse_args()
    model, tokenizer = load(options.bundle), Tokenizer.from_file(str(options.bundle / "tokenizer.json"))
    _, held_out = plain_sentences(options.data)
    for title, others in (("sentences, names and formats as in training", False), ("held-out ones", True)):
        table(title, model, tokenizer, mixed(Maker(SEED + 1 + others, others), held_out, TEXTS))
    table("written by hand", model, tokenizer, by_hand())
    for text in by_hand():
        encoding, guessed, true = compared(model, tokenizer, text)
        for what, spans in (("missing", true - guessed), ("wrong", guessed - true)):
            for start, end, kind in sorted(spans):
                part = text.text[encoding.offsets[start][0] : encoding.offsets[end - 1][1]]
                print(f"{what}: {kind} {part!r} in {text.text[:60]!r}")


if __name__ == "__main__":
    main()
