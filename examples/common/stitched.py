"""Write the texts that `reviews-long` is measured and calibrated on: test reviews, and long documents stitched of them.

`python examples/common/stitched.py --data IMDB_FOLDER --tokenizer TOKENIZER.json --output FOLDER`

* `reviews.jsonl`: test reviews alone.
* `stitched-1024.jsonl` to `stitched-16384.jsonl`: test reviews one after the other, up to so many tokens.
* `imdb-test-and-stitched.jsonl`, to calibrate with: the first of each of those files.

No review is in two documents. Left out are the reviews by which the weights that ship were chosen, and copies of
reviews of the train split: IMDb has some.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from tokenizers import Tokenizer

from common.text import Document, Task, encode, imdb

TO_ADAPT, WATCHED = 2000, 2000
ALONE = 2400
STITCHED = {1024: 120, 2048: 120, 4096: 200, 8192: 110, 16_384: 110}
# Reviews alone under length 0. The exact value is quadratic in the length: 16,384 tokens take seconds.
TO_CALIBRATE = {0: 800, 1024: 40, 2048: 40, 4096: 40, 8192: 36, 16_384: 12}
MAIN_SHARE = 2 / 3
SEED = 0


def write(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Writes JSON lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def unseen(task: Task) -> list[Document]:
    """Test reviews that neither trained nor chose the weights that ship, in an order drawn by lot."""
    draw = random.Random(SEED)
    draw.sample(task.train, TO_ADAPT)  # the draw that chose the reviews to adapt with went on to those to watch by
    watched = draw.sample(task.test, WATCHED)
    seen = {row.text for row in [*task.train, *task.held_out, *watched]}
    rows = list({row.text: row for row in task.test if row.text not in seen}.values())
    draw.shuffle(rows)
    return rows


def stitched(
    pool: list[list[Document]], tokenizer: Tokenizer, tokens: int, count: int
) -> Iterator[tuple[list[Document], int]]:
    """Documents of at most so many tokens, unless their first review has more, and the label of most of their reviews.

    About two of three reviews have it, so a reader of the first page alone would often be wrong.

    Args:
        pool: reviews of either label; those that are used are taken away.
        tokenizer: of the model.
        tokens: how many.
        count: of documents.
    """
    draw = random.Random(tokens)
    for index in range(count):
        parts: list[Document] = []
        filled = 0
        while True:
            review = pool[index % 2 if draw.random() < MAIN_SHARE else 1 - index % 2].pop()
            filled += len(encode(tokenizer, [review], sys.maxsize)[0])
            if parts and filled > tokens:
                break
            parts.append(review)
        if 2 * sum(part.labels[0] for part in parts) == len(parts):
            parts.pop()
        yield parts, int(2 * sum(part.labels[0] for part in parts) > len(parts))


def main() -> None:
    """Write the files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of IMDb")
    parser.add_argument("--tokenizer", type=Path, required=True, help="of the checkpoint or the bundle")
    parser.add_argument("--output", type=Path, required=True, help="folder to write to")
    options = parser.parse_args()
    task, tokenizer = imdb(options.data), Tokenizer.from_file(str(options.tokenizer))
    options.output.mkdir(parents=True, exist_ok=True)
    reviews = unseen(task)
    files = {0: [{"text": row.text, "label": task.labels[row.labels[0]]} for row in reviews[:ALONE]]}
    pool = [[row for row in reviews[ALONE:] if row.labels[0] == label] for label in (0, 1)]
    for tokens, count in STITCHED.items():
        files[tokens] = [
            {"text": "\n\n".join(part.text for part in parts), "label": task.labels[label]}
            for parts, label in stitched(pool, tokenizer, tokens, count)
        ]
    for tokens, rows in files.items():
        write(options.output / (f"stitched-{tokens}.jsonl" if tokens else "reviews.jsonl"), rows)
    to_calibrate = [row for tokens, count in TO_CALIBRATE.items() for row in files[tokens][:count]]
    write(options.output / "imdb-test-and-stitched.jsonl", to_calibrate)


if __name__ == "__main__":
    main()
