"""The parts that `calibration.json` is made of: bounded numbers, strict records, and proportions with their bounds."""

from typing import Annotated, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from attenuator.errors import CONTROL

MAX_SETTINGS = 128  # a goal may predict the time of each, on the event loop; three knobs have 64 at most
MAX_COUNT = 2**31 - 1  # of tokens or texts
SHORTEST, LONGEST = 1e-9, 1e6  # seconds, or shares: logarithms and sums stay within floating point
MAX_LINE = 256  # characters

Finite = Annotated[float, Field(allow_inf_nan=False)]
Seconds = Annotated[float, Field(ge=SHORTEST, le=LONGEST, allow_inf_nan=False)]
Positive = Annotated[int, Field(ge=1, le=MAX_COUNT)]
Count = Annotated[int, Field(ge=0, le=MAX_COUNT)]


def _printable(text: str) -> str:
    if CONTROL.search(text):
        raise ValueError("must have no control character")
    return text


Line = Annotated[str, Field(max_length=MAX_LINE), AfterValidator(_printable)]


class Record(BaseModel):
    """Base of the file's parts: unknown fields are refused, instances do not change."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Proportion(Record):
    """How many of a number of texts have a property.

    Attributes:
        successes: texts that have it.
        trials: texts.
        low: lower end of a two-sided interval (Wilson 1927) at the file's `confidence`.
        high: its upper end.
        bound: one-sided lower bound (Clopper and Pearson 1934) at the file's `confidence`, which goals are compared
            with. It is exact, and always below 1; near 1, where goals lie, Wilson's covers less than it says.
    """

    successes: Count
    trials: Positive
    low: Annotated[float, Field(ge=0, le=1)]
    high: Annotated[float, Field(ge=0, le=1)]
    bound: Annotated[float, Field(ge=0, lt=1)]

    @model_validator(mode="after")
    def fits_together(self) -> Self:
        """Refuses what no count of texts gives: answers would promise it."""
        if self.successes > self.trials:
            raise ValueError(f"successes is {self.successes}, must be at most trials, {self.trials}")
        if not (self.low <= self.value <= self.high and self.bound <= self.value):
            raise ValueError(f"the interval and the bound must fit {self.successes} of {self.trials}")
        return self

    @property
    def value(self) -> float:
        """Share of the texts."""
        return self.successes / self.trials
