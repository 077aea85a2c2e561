"""ListOps of Long Range Arena: nested lists of digits whose value is the label, by its published rules.

A node is an operator with 2 to 10 arguments where a draw falls at or below 0.25 and the depth allows it, else a digit;
the operator is drawn after its arguments. MED is the median without its fraction, SM the sum modulo 10. A sequence has
one token for each operator, digit and closing bracket (written X); the rules' round brackets are left out, as Long
Range Arena does. Source: Tay et al., "Long Range Arena", ICLR 2021, section 2.1, and its published generator; Nangia
and Bowman, 2018. Standard library only.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from statistics import median
from typing import NamedTuple

OPERATORS: dict[str, Callable[[Sequence[int]], int]] = {
    "[MIN": min,
    "[MAX": max,
    "[MED": lambda values: int(median(values)),
    "[SM": lambda values: sum(values) % 10,
}
END = "X"
TOKENS = (*OPERATORS, END, *map(str, range(10)))  # a token's id is its place
LABELS = 10
OPERATOR_SHARE, MOST_ARGUMENTS, MOST_DEPTH = 0.25, 10, 10


class TooLong(Exception):
    """A sequence has more tokens than it may."""


class Expression(NamedTuple):
    """Tokens in reading order, and the value that they stand for."""

    tokens: tuple[str, ...]
    value: int


def node(draw: random.Random, tokens: list[str], below: int, depth: int = 1) -> int:
    """Appends a random expression: a digit, or an operator, its arguments and X.

    Args:
        draw: random numbers.
        tokens: what is appended to.
        below: more tokens than there may be.
        depth: of the node, 1 at the root; one at MOST_DEPTH is a digit.

    Returns:
        Its value.

    Raises:
        TooLong: there would be `below` tokens.
    """
    if len(tokens) >= below:
        raise TooLong
    if depth == MOST_DEPTH or draw.random() > OPERATOR_SHARE:
        value = draw.randrange(10)
        tokens.append(str(value))
        return value
    place = len(tokens)
    tokens.append("")  # the operator, which is drawn after its arguments
    values = [node(draw, tokens, below, depth + 1) for _ in range(draw.randint(2, MOST_ARGUMENTS))]
    tokens[place] = draw.choice(tuple(OPERATORS))
    tokens.append(END)
    return OPERATORS[tokens[place]](values)


def expressions(seed: int, above: int, below: int) -> Iterator[Expression]:
    """Different expressions of more than `above` and fewer than `below` tokens, without end."""
    draw = random.Random(seed)
    seen: set[tuple[str, ...]] = set()
    while True:
        tokens: list[str] = []
        try:
            value = node(draw, tokens, below)
        except TooLong:
            continue
        made = tuple(tokens)
        if above < len(made) < below and made not in seen:
            seen.add(made)
            yield Expression(made, value)
