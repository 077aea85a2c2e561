"""The rules of ListOps and Pathfinder: lengths, labels that an independent evaluator finds, their balance."""

from collections import Counter
from itertools import islice

import numpy as np
import pytest
from benchmarks.papers.lra import listops, pathfinder
from benchmarks.papers.lra.pathfinder import (
    CLEARANCE,
    CONTOUR,
    DASH,
    DISTRACTOR,
    DISTRACTORS,
    GAP,
    PADDING,
    SIDE,
    Scene,
)

ABOVE, BELOW = 20, 200


def evaluated(tokens: tuple[str, ...]) -> tuple[int, int]:
    """The value of an expression and how deep it nests, by a stack, without the generator's functions."""
    stack: list[list[str | int]] = [[]]
    deepest = 0
    for token in tokens:
        if token.startswith("["):
            stack.append([token])
            deepest = max(deepest, len(stack) - 1)
        elif token == "X":
            operator, *rest = stack.pop()
            values = sorted(int(value) for value in rest)
            assert 2 <= len(values) <= 10
            middle, odd = divmod(len(values), 2)
            median = values[middle] if odd else (values[middle - 1] + values[middle]) // 2
            of = {"[MIN": values[0], "[MAX": values[-1], "[MED": median, "[SM": sum(values) % 10}
            stack[-1].append(of[str(operator)])
        else:
            stack[-1].append(int(token))
    [[value]] = stack
    return int(value), deepest


def test_listops_follows_its_rules() -> None:
    made = list(islice(listops.expressions(3, ABOVE, BELOW), 1500))
    assert len({one.tokens for one in made}) == len(made)
    assert all(ABOVE < len(one.tokens) < BELOW for one in made)
    assert {len(one.tokens) for one in made} > {ABOVE + 1, 60}
    judged = [evaluated(one.tokens) for one in made]
    assert [value for value, _ in judged] == [one.value for one in made]
    assert 5 <= max(deepest for _, deepest in judged) < listops.MOST_DEPTH
    counts = Counter(token for one in made for token in one.tokens)
    assert set(counts) == set(listops.TOKENS)
    operators = [counts[name] for name in listops.OPERATORS]
    assert sum(operators) == counts["X"]
    spread = 5 * np.sqrt(sum(operators) * 0.25 * 0.75)
    assert np.abs(np.array(operators) - sum(operators) / 4).max() < spread
    labels = np.bincount([one.value for one in made], minlength=10) / len(made)
    # MIN and MAX make 0 and 9 the commonest; 1,500 draws move a share by less than 0.05 (five standard errors).
    assert min(labels[0], labels[9]) > 0.1
    assert 0.03 < labels.min() <= labels.max() < 0.25
    assert list(islice(listops.expressions(3, ABOVE, BELOW), 20)) == made[:20]
    assert list(islice(listops.expressions(4, ABOVE, BELOW), 20)) != made[:20]


def test_a_tree_goes_no_deeper_than_the_rules_allow() -> None:
    class Deep(listops.random.Random):
        def random(self) -> float:
            return 0.0  # an operator wherever there may be one

        def randint(self, a: int, b: int) -> int:
            assert (a, b) == (2, 10)
            return 2

    tokens: list[str] = []
    value = listops.node(Deep(0), tokens, 10_000)
    assert len(tokens) == 2**9 + 2 * (2**9 - 1)
    assert evaluated(tuple(tokens)) == (value, 9)
    with pytest.raises(listops.TooLong):
        listops.node(Deep(0), [], len(tokens) - 600)


def contour_of(scene: Scene) -> list[int]:
    """To which contour each dash belongs, told by ends and beginnings alone: one gap apart."""
    apart = np.linalg.norm(scene.dashes[:, None, 1] - scene.dashes[None, :, 0], axis=-1)
    names = list(range(len(scene.dashes)))
    for end, begin in zip(*np.nonzero(apart < GAP + 1e-6), strict=True):
        names = [names[end] if name == names[begin] else name for name in names]
    return names


def sampled(dashes: pathfinder.Array) -> pathfinder.Array:
    """Points along dashes `[dashes, 9, 2]`."""
    share = np.linspace(0, 1, 9)[:, None]
    return dashes[:, :1] * (1 - share) + dashes[:, 1:] * share


@pytest.fixture(scope="module")
def scenes() -> list[Scene]:
    draw = np.random.default_rng(5)
    return [pathfinder.scene(draw, label % 2) for label in range(12)]


def test_pathfinders_discs_lie_on_the_same_contour_where_the_label_says_so(scenes: list[Scene]) -> None:
    for scene in scenes:
        names = contour_of(scene)
        sizes = Counter(names)
        assert sorted(sizes.values())[-2:] == [CONTOUR, CONTOUR]
        assert sum(1 < size < CONTOUR for size in sizes.values()) <= DISTRACTORS
        assert all(size <= DISTRACTOR for size in sorted(sizes.values())[:-2])
        begin = np.linalg.norm(scene.dashes[:, 0] - scene.discs[0], axis=1)
        end = np.linalg.norm(scene.dashes[:, 1] - scene.discs[1], axis=1)
        assert max(begin.min(), end.min()) < 1e-9
        one, other = names[int(begin.argmin())], names[int(end.argmin())]
        assert sizes[one] == sizes[other] == CONTOUR
        assert (one == other) == bool(scene.label)
    assert {scene.label for scene in scenes} == {0, 1}


def test_pathfinders_dashes_keep_their_distance_and_turn_by_less_than_a_right_angle(scenes: list[Scene]) -> None:
    for scene in scenes:
        along = scene.dashes[:, 1] - scene.dashes[:, 0]
        np.testing.assert_allclose(np.linalg.norm(along, axis=1), DASH)
        assert ((scene.dashes >= PADDING) & (scene.dashes <= SIDE - PADDING)).all()
        points = sampled(scene.dashes)
        apart = np.linalg.norm(points[:, None, :, None] - points[None, :, None, :], axis=-1).min(axis=(2, 3))
        followed = np.linalg.norm(scene.dashes[:, None, 1] - scene.dashes[None, :, 0], axis=-1) < GAP + 1e-6
        strangers = ~(followed | followed.T | np.eye(len(apart), dtype=bool))
        # Five points of a new dash are measured: between them it may come nearer by 1/32 of a pixel or so.
        assert apart[strangers].min() > CLEARANCE - 0.05
        cosines = (along[:, None] * along[None]).sum(-1)[followed] / DASH**2
        assert cosines.min() > 0
        assert cosines.mean() > 0.5


def test_pathfinders_pixels_show_dashes_and_discs(scenes: list[Scene]) -> None:
    for scene in scenes[:4]:
        image = pathfinder.pixels(scene).reshape(SIDE, SIDE)
        for y, x in scene.discs:
            assert image[int(y), int(x)] == 255
        middles = scene.dashes.mean(axis=1).astype(int)
        near = [image[y - 1 : y + 2, x - 1 : x + 2].max() for y, x in middles]
        assert min(near) >= 255 * 0.25 * pathfinder.CONTRAST - 1
        assert 0.4 < (image == 0).mean() < 0.9
        nothing = Scene(scene.dashes[:1], scene.discs, scene.label)
        assert (pathfinder.pixels(nothing) <= image.reshape(-1)).all()
    again = pathfinder.scene(np.random.default_rng(5), 0)
    assert (pathfinder.pixels(again) == pathfinder.pixels(scenes[0])).all()
