"""Where texts and their tokens are cut."""

from typing import Literal

from tokenizers import Encoding

from attenuator.classify_request import LongTexts
from attenuator.errors import InvalidRequest
from attenuator.ops.knobs import shown

_, SIZE, STRIDE = LongTexts.model_fields


def cut(
    first: Encoding,
    second: Encoding | None,
    room: int,
    side: Literal["left", "right"] = "right",
    *,
    only_first: bool = False,
) -> None:
    """Cuts tokens off one side, of the longer text first, as `longest_first` of the tokenizers package does.

    Args:
        first: changed in place.
        second: the second of a pair, changed in place.
        room: tokens that may stay.
        side: where tokens are cut off.
        only_first: leaves the second as it is, which must be shorter than `room`.
    """
    if second is None or only_first:
        first.truncate(room - len(second or ()), direction=side)
        return
    shorter = min(len(first), len(second), room // 2)
    first_room = room - shorter if len(first) > len(second) else shorter
    first.truncate(min(len(first), first_room), direction=side)
    second.truncate(min(len(second), room - first_room), direction=side)


def part_of(text: str, size: int, marks: tuple[str, ...], side: Literal["left", "right"]) -> str:
    """The part of a text that remains where about `size` characters are kept, cut at one of the marks.

    Args:
        text: longer than `size`.
        size: most characters to keep.
        marks: characters to cut at.
        side: where the text is cut off.

    Returns:
        `size / 2` to `size` characters; an empty text where no mark would leave that many.
    """
    if side == "right":
        return text[: max(0, *(text.rfind(mark, size // 2, size) for mark in marks))]
    places = [text.find(mark, len(text) - size, len(text) - size // 2) for mark in marks]
    return text[min((at for at in places if at >= 0), default=len(text)) :]


def check_room(size: int, room: int, step: int) -> None:
    """Refuses, with InvalidRequest, windows in which no token of a text fits, or between which some would lie.

    Args:
        size: tokens of a window.
        room: those of them that are the text's.
        step: from the beginning of a window to that of the next.
    """
    fewest = f"at least {size - room + 1}: special tokens and a second text fill the rest"
    most = f"at most {room}, as many as a window has of the text"
    too_small, too_wide = size if room < 1 else None, step if step > room else None
    for name, value, allowed in ((SIZE, too_small, fewest), (STRIDE, too_wide, most)):
        if value is not None:
            raise InvalidRequest(
                f"{name} is {shown(value)}, must be {allowed}", param=name, allowed=allowed.partition(":")[0]
            )
