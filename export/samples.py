"""The inputs on which export compares: random token ids of many lengths, and texts through the bundle's own tokenizer.

Texts add what random ids do not have: special tokens spelled out, pairs, and many scripts. They also show whether
`tokenizer.json` alone gives the same ids as the tokenizer of transformers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from attenuator.bundle import Manifest
from attenuator.errors import ExportError, InvalidRequest
from attenuator.export.sentences import one_line
from attenuator.export.source import Source
from attenuator.export.tokenizer import BundleTokenizer
from attenuator.precision import PRECISIONS
from attenuator.runtime import Row
from attenuator.runtime.batch import logits_of, pack
from attenuator.runtime.tokens import Encoded, TextEncoder

__all__ = ["Sample", "draw", "encoded_texts", "eager_logits"]

LENGTHS = (5, 1, 33, 2, 140, 300, 17)
# Rounding is judged by more rows. Their number matters, not their length, so they are short.
EXTRA_LENGTHS = (33, 17, 9, 5, 3)
# Tokens of a batch. Without the operators, the graph's exact functions take memory quadratic in this number.
BATCH_TOKENS = 600
# Longer texts are cut off, on the side that the tokenizer says.
TEXT_TOKENS = 120
# With fewer tokens than this, special tokens leave no room for a text.
FEWEST_TEXT_TOKENS = 8
SPECIAL_TOKENS = 8
SEED = 0
Text = tuple[str, str | None]


@dataclass(frozen=True)
class Sample:
    """Ragged batches, and what PyTorch says about each row alone.

    Attributes:
        manifest: what the bundle will say, as far as that is known.
        rows: B rows, knobs at their exact value.
        core: how many of the first rows are compared in every way; the others serve to count labels that change.
        logits: float32 `[B, labels]`, from the eager model; of a token classifier `[T, labels]`, one row's tokens after
            another's.
    """

    manifest: Manifest
    rows: list[Row]
    core: int
    logits: npt.NDArray[np.float32]

    def first(self) -> Sample:
        """The core rows alone."""
        return replace(self, rows=self.rows[: self.core], logits=self.of_first(self.core, self.logits))

    def of_first(self, count: int, logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """The logits of the first rows, of those of all."""
        return logits[: logits_of(self.rows[:count], self.manifest)]

    def run(self, session: Any) -> npt.NDArray[np.float32]:
        """Logits of a session, as `logits` has them, some rows at a time."""
        return np.concatenate([session.run(["logits"], pack(rows, self.manifest))[0] for rows in self.batches()])

    def run_alone(self, session: Any) -> npt.NDArray[np.float32]:
        """Likewise, each row by itself."""
        return np.concatenate([session.run(["logits"], pack([row], self.manifest))[0] for row in self.rows])

    def batches(self) -> Iterator[list[Row]]:
        """The rows in order, in batches of at most `BATCH_TOKENS` tokens or of one row."""
        batch: list[Row] = []
        total = 0
        for row in self.rows:
            if batch and total + len(row.token_ids) > BATCH_TOKENS:
                yield batch
                batch, total = [], 0
            batch.append(row)
            total += len(row.token_ids)
        yield batch


def texts(special_tokens: list[str]) -> list[Text]:
    """Texts and pairs: ordinary, nearly empty, long, of many scripts, and with special tokens spelled out."""
    long = "Is this, then, the longest sentence of all 37? " * 20
    plain = "A film so bad that it is good, again!"
    spelled = [f"one {token} two{token}three" for token in special_tokens[:SPECIAL_TOKENS]]
    every = " ".join(special_tokens[:SPECIAL_TOKENS])
    return [
        (plain, None),
        ("Überraschung: 42 tokens\tand  two spaces.\n", None),
        (plain, "Überraschung: 42 tokens\tand  two spaces."),
        ("x", None),
        (".", "?"),
        ("Ελληνικά, русский, العربية, עברית, हिन्दी", None),
        ("中文。日本語、한국어 ไทย", "e\u0301te\u0301 \u200b\u00a0\ufb01n"),
        ("👩‍👩‍👧 🇪🇺 ☕️", None),
        (long, None),
        (long, plain),
        *((text, None) for text in spelled),
        (every or "y", every or "z"),
    ]


def encoded_texts(source: Source, manifest: Manifest, path: Path) -> list[Encoded]:
    """Texts as the bundle's tokenizer encodes them; the source's own tokenizer must encode them in the same way.

    Args:
        source: the model, whose token types must suffice.
        manifest: what the bundle will say.
        path: the bundle's `tokenizer.json`.

    Returns:
        The encoded texts; none for a bundle whose limit leaves no room for texts.

    Raises:
        ExportError: both tokenizers differ on a text, or it gets a token type that the model does not have.
        BundleError: serving would refuse the tokenizer.
    """
    limit = min(manifest.max_tokens, TEXT_TOKENS)
    if limit < FEWEST_TEXT_TOKENS:
        return []
    encoder = TextEncoder.of_bundle(path, manifest.model_copy(update={"max_tokens": limit}))
    encoded = []
    for text, pair in texts(source.tokenizer.special_tokens()):
        try:
            one = encoder.encode(text, pair, truncate=True, param="text")
        except InvalidRequest:  # serving refuses a text of which no token is left
            continue
        compare_tokens(source.tokenizer, (text, pair), one, limit)
        check_types(source, one)
        encoded.append(one)
    return encoded


def compare_tokens(tokenizer: BundleTokenizer, text: Text, encoded: Encoded, limit: int) -> None:
    """Refuses a bundle's tokenizer that reads a text in another way than the source's own tokenizer."""
    if tokenizer.own is None:
        return
    own = tokenizer.own(*text, truncation=True, max_length=limit)
    ids, types = encoded.token_ids.tolist(), encoded.type_ids.tolist()
    if own["input_ids"] == ids and own.get("token_type_ids", [0] * len(ids)) == types:
        return
    shown = " and ".join(ascii(part[:40]) for part in text if part is not None)
    raise ExportError(f"tokenizer.json alone gives other ids than {type(tokenizer.own).__name__} for the text {shown}")


def check_types(source: Source, encoded: Encoded) -> None:
    """Refuses token types beyond the model's table; a table with one row is never read."""
    rows = source.type_vocab_size
    high = int(encoded.type_ids.max(initial=0))
    if source.has_token_types and high >= rows:
        index = int(encoded.type_ids.argmax())
        token = source.tokenizer.plain.id_to_token(int(encoded.token_ids[index]))
        raise ExportError(
            f"the tokenizer gives the token '{token}' type id {high}, must be below the model's type_vocab_size {rows}"
        )


def draw(source: Source, manifest: Manifest, encoded: list[Encoded]) -> Sample:
    """Draws random rows, length 1 included, adds the texts, and asks the eager model about each row alone.

    Args:
        source: the trained model.
        manifest: what the bundle will say; its precision says how many rows there are.
        encoded: the texts.

    Raises:
        ExportError: the model fails on a row, or answers no numbers.
    """
    generator = np.random.default_rng(SEED)
    exact = {knob.name: knob.exact for knob in manifest.knobs}

    def random_rows(lengths: tuple[int, ...]) -> Iterator[Row]:
        for length in dict.fromkeys(min(length, manifest.max_tokens) for length in lengths):
            ids = generator.integers(0, manifest.vocab_size, length)
            types = generator.integers(0, source.type_vocab_size, length)
            yield Row(ids, types, exact)

    rows = list(random_rows(LENGTHS))
    for text in encoded:
        types = text.type_ids if source.has_token_types else np.zeros_like(text.token_ids)
        rows.append(Row(text.token_ids, types, exact))
    core = len(rows)
    for _ in range(PRECISIONS[manifest.precision].export_repeats - 1):
        rows += random_rows(EXTRA_LENGTHS)
    logits = eager_logits(source, rows)
    if not np.isfinite(logits).all():
        raise ExportError(
            "the PyTorch model answers NaN or infinity to some token ids: with its weights float32 overflows"
        )
    return Sample(manifest, rows, core, logits)


def eager_logits(source: Source, rows: list[Row]) -> npt.NDArray[np.float32]:
    """What the PyTorch model says about each row alone, float32 `[B, labels]`, or `[T, labels]`.

    Raises:
        ExportError: the model fails.
    """
    eager = source.architecture.eager
    try:
        with torch.inference_mode():
            logits = [
                eager(source.model, torch.from_numpy(row.token_ids), torch.from_numpy(row.type_ids)) for row in rows
            ]
    except Exception as error:  # whatever the model raises
        raise ExportError(f"the PyTorch model fails on token ids below its vocab_size: {one_line(error)}") from error
    return (torch.cat if source.architecture.reads_tokens else torch.stack)(logits).numpy()
