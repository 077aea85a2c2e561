"""Pathfinder of Long Range Arena: images of dashed contours; do two discs lie on the ends of the same one?

By the rules of the published generator (Linsley et al., 2018, `snakes2`) with Long Range Arena's settings: two contours
of 14 dashes grow in turns, then 5 short ones of 4 dashes and single dashes where there is room, none touching another.
A dash begins one pixel beyond the end of the one before; its direction is drawn by max(0, cos(turn))^2 among those that
are free. One disc lies where one of the two long contours begins, the other where the same (label 1) or the other
(label 0) ends. The published code keeps a mask of occupied pixels and draws with other libraries; here places are not
rounded to pixels and room is a distance between dashes, so that the images follow the rules and are not the same ones.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
SIDE = 32  # pixels
PADDING = 1.0  # kept free along the border
DASH, GAP, THICKNESS = 2.0, 1.0, 0.5
CLEARANCE = GAP + THICKNESS  # between dashes that do not follow each other
CONTOUR, DISTRACTOR, DISTRACTORS = 14, 4, 5  # dashes, dashes, contours
SEED_DISTANCE = 7  # between the beginnings of the two contours; twice as far from the border
CONTINUITY = 1.0
CONTRAST = 2 * 0.75
MARKER_RADIUS = 1.5
ANTIALIAS = 2  # samples a pixel along each axis
DIRECTIONS = np.arange(-90, 91, 5) * math.pi / 180  # turns that have a weight
TRIALS = 128  # places that are tried for a dash before there is no room


@dataclass(frozen=True)
class Scene:
    """What is drawn; coordinates in pixels from the border's corner.

    Attributes:
        dashes: `[dashes, 2, 2]`, beginning and end of each; the two contours first, CONTOUR each.
        discs: `[2, 2]`, the centres of both.
        label: 1 where they are on the same contour.
    """

    dashes: Array
    discs: Array
    label: int


class NoRoom(Exception):
    """A contour cannot go on."""


def distances(points: Array, dashes: Array) -> Array:
    """From points `[..., 2]` to segments `[dashes, 2, 2]`: `[..., dashes]`."""
    begin, along = dashes[:, 0], dashes[:, 1] - dashes[:, 0]
    offsets = points[..., None, :] - begin
    share = np.clip((offsets * along).sum(-1) / (along**2).sum(-1), 0.0, 1.0)
    distance: Array = np.linalg.norm(offsets - share[..., None] * along, axis=-1)
    return distance


def free(candidates: Array, dashes: Array) -> NDArray[np.bool_]:
    """Which dashes `[candidates, 2, 2]` lie inside the border and keep their distance from others `[dashes, 2, 2]`."""
    inside = ((candidates >= PADDING) & (candidates <= SIDE - PADDING)).all(axis=(1, 2))
    if not len(dashes):
        return inside
    steps = np.linspace(0.0, 1.0, 5)[:, None]
    points = candidates[:, :1] * (1 - steps) + candidates[:, 1:] * steps
    result: NDArray[np.bool_] = inside & (distances(points, dashes) > CLEARANCE).all(axis=(1, 2))
    return result


def dash(begin: Array, angle: Array) -> Array:
    """Dashes `[..., 2, 2]` from their beginnings `[..., 2]` in directions `[...]`."""
    ahead = np.stack([np.sin(angle), np.cos(angle)], axis=-1)
    return np.stack([begin, begin + DASH * ahead], axis=-2)


class Canvas:
    """The dashes of an image so far, contour by contour.

    Args:
        draw: random numbers.
    """

    def __init__(self, draw: np.random.Generator) -> None:
        self.draw = draw
        self.contours: list[list[Array]] = []

    def others(self, contour: list[Array]) -> Array:
        """All dashes but the last of a contour, which the next one may come near to."""
        return np.array([item for line in self.contours for item in (line[:-1] if line is contour else line)])

    def start(self, begins: Array) -> list[Array]:
        """A contour with a first dash from the first of the beginnings `[trials, 2]` that has room, any direction.

        Raises:
            NoRoom: there is none.
        """
        tried = dash(begins, self.draw.uniform(-math.pi, math.pi, len(begins)))
        room = np.flatnonzero(free(tried, self.others([])))
        if not len(room):
            raise NoRoom
        self.contours.append([tried[room[0]]])
        return self.contours[-1]

    def extend(self, contour: list[Array]) -> None:
        """Adds a dash.

        Raises:
            NoRoom: no direction is free.
        """
        (y, x), end = contour[-1]
        angles = math.atan2(end[0] - y, end[1] - x) + DIRECTIONS
        ahead = np.stack([np.sin(angles), np.cos(angles)], axis=-1)
        tried = dash(end + GAP * ahead, angles)
        turns = np.minimum(CONTINUITY * np.abs(DIRECTIONS), math.pi / 2)
        weights = np.where(free(tried, self.others(contour)), np.cos(turns).clip(0) ** 2, 0.0)
        if weights.sum() < 1e-9:
            raise NoRoom
        contour.append(tried[self.draw.choice(len(tried), p=weights / weights.sum())])

    def anywhere(self) -> Array:
        """Places to try `[TRIALS, 2]`."""
        return self.draw.uniform(PADDING, SIDE - PADDING, (TRIALS, 2))


def two_contours(canvas: Canvas) -> None:
    """The contours that matter, growing in turns.

    Raises:
        NoRoom: one of them cannot be as long as it must.
    """
    middle = canvas.draw.uniform(2 * SEED_DISTANCE, SIDE - 2 * SEED_DISTANCE, (TRIALS, 2))
    first = canvas.start(middle)
    angles = canvas.draw.uniform(-math.pi, math.pi, TRIALS)
    around = first[0][0] + SEED_DISTANCE * np.stack([np.sin(angles), np.cos(angles)], axis=-1)
    second = canvas.start(around)
    for _ in range(CONTOUR - 1):
        canvas.extend(first)
        canvas.extend(second)


def fill(canvas: Canvas) -> None:
    """Short contours, those that cannot grow left as short as they are, then single dashes until there is no room."""
    for _ in range(DISTRACTORS):
        try:
            contour = canvas.start(canvas.anywhere())
            for _ in range(DISTRACTOR - 1):
                canvas.extend(contour)
        except NoRoom:
            continue
    while True:
        tried = dash(canvas.anywhere(), canvas.draw.uniform(-math.pi, math.pi, TRIALS))
        tried = tried[free(tried, canvas.others([]))]
        if not len(tried):
            return
        while len(tried):  # one after another, as if each had been drawn by itself
            canvas.contours.append([tried[0]])
            tried = tried[free(tried, tried[:1])]


def scene(draw: np.random.Generator, label: int) -> Scene:
    """A random image's dashes and discs."""
    while True:
        canvas = Canvas(draw)
        try:
            two_contours(canvas)
        except NoRoom:
            continue
        break
    fill(canvas)
    one = int(draw.integers(2))
    other = one if label else 1 - one
    discs = np.array([canvas.contours[one][0][0], canvas.contours[other][-1][1]])
    return Scene(np.array([item for contour in canvas.contours for item in contour]), discs, label)


def pixels(drawn: Scene) -> NDArray[np.uint8]:
    """The image `[SIDE * SIDE]`, row by row, 0 is black."""
    samples = (np.arange(SIDE * ANTIALIAS) + 0.5) / ANTIALIAS
    points = np.stack(np.meshgrid(samples, samples, indexing="ij"), axis=-1)
    lines = (distances(points, drawn.dashes).min(axis=-1) <= THICKNESS / 2 + 1e-9) * CONTRAST
    offsets = points[:, :, None, :] - drawn.discs
    discs = (np.linalg.norm(offsets, axis=-1).min(axis=-1) <= MARKER_RADIUS) * 1.0
    of_pixel = (SIDE, ANTIALIAS, SIDE, ANTIALIAS)
    grey = np.maximum(*(layer.reshape(of_pixel).mean(axis=(1, 3)) for layer in (lines, discs)))
    result: NDArray[np.uint8] = np.round(255 * grey.clip(0, 1)).astype(np.uint8).reshape(-1)
    return result
