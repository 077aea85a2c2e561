"""Texts with personal data, made by rule: each has its spans by character, or none at all.

`Maker(seed).text()` fills sentences of `sentences.txt` with names and formats of `lists.txt`. With `held_out`,
sentences, names and formats are others, which `Maker(seed)` never uses. Both files were written for this model and
copied from no data set. In a sentence `[a|b]` is one of several wordings and `{person}` a value; in a format # is a
digit and @ a letter.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from pathlib import Path

KINDS = ["PERSON", "EMAIL", "PHONE", "LOCATION", "ORGANIZATION", "DATE", "IBAN", "CARD", "ID"]
LABELS = ["O", *(f"{prefix}-{kind}" for kind in KINDS for prefix in "BI")]
MARKED = {
    **dict.fromkeys(("person", "first", "last"), "PERSON"),
    **dict.fromkeys(("address", "city", "country", "place"), "LOCATION"),
    **dict.fromkeys(("id", "passport"), "ID"),
    **{kind.lower(): kind for kind in ("EMAIL", "PHONE", "DATE", "IBAN", "CARD")},
    "org": "ORGANIZATION",
}
TYPO_SHARE, LOWER_SHARE, UPPER_SHARE, MADE_UP_SHARE = 0.15, 0.15, 0.03, 0.35
FAMILY_ENDINGS = ("", "", "", "ov", "son", "ez", "ski", "man", "sen", "wala")
FAMILY_PREFIXES = ("van ", "de ", "von ", "van der ", "da ", "al-", "Mc", "O'", "el ")
MAILBOXES = ("info", "support", "sales", "office", "contact", "hello", "billing")


@dataclass(frozen=True)
class Text:
    """A text and its spans `(start, end, kind)` by character, in order."""

    text: str
    spans: tuple[tuple[int, int, str], ...]


def sections(file: str) -> dict[str, list[str]]:
    """The lines of each section of a file in this folder, by the section's name."""
    found: dict[str, list[str]] = {}
    for line in (Path(__file__).parent / file).read_text(encoding="utf-8").splitlines():
        if re.fullmatch(r"\[[\w, ]+\]", line):
            found[line[1:-1]] = latest = []
        elif line:
            latest.append(line.replace("\\n", "\n"))
    return found


def entries(lines: list[str]) -> list[str]:
    """The entries of a list, between bars where it has some, otherwise between blanks."""
    whole = " ".join(lines)
    return whole.split(" | ") if "|" in whole else whole.split(" ")


LISTS = {name: entries(lines) for name, lines in sections("lists.txt").items()}
SENTENCES = sections("sentences.txt")


class Maker:
    """Makes texts, the same ones for the same seed."""

    def __init__(self, seed: int, held_out: bool = False) -> None:
        self.draw = random.Random(seed)
        self.held_out = held_out
        self.sentences = SENTENCES["sentences, held out" if held_out else "sentences"]

    def text(self) -> Text:
        """One text of one to seven sentences."""
        count = self.draw.choice((1, 1, 2, 3, 4, 5, 7))
        text, spans = "", list[tuple[int, int, str]]()
        case = self.draw.random()
        change = str.lower if case < LOWER_SHARE else str.upper if case < LOWER_SHARE + UPPER_SHARE else str
        typos = self.draw.random() < TYPO_SHARE
        for sentence in self.draw.sample(self.sentences, count):
            text += self.draw.choice(("\n", "\n", "\n\n", " ", " ", " ")) if text else ""
            for part in re.split(r"(\{\w+\})", self.worded(sentence)):
                is_slot = part.startswith("{")
                value = self.value(part[1:-1]) if is_slot else self.mistyped(part) if typos else part
                value = value if len(change(value)) != len(value) else change(value)
                kind = MARKED.get(part[1:-1]) if is_slot else None
                if kind:
                    start = len(text) + (4 if value.lower().startswith("the ") else 0)
                    spans.append((start, len(text) + len(value), kind))
                text += value
        return Text(text, tuple(spans))

    def worded(self, sentence: str) -> str:
        """A sentence with one of each group of wordings; groups may hold groups."""
        while "[" in sentence:
            sentence = re.sub(r"\[([^\[\]]*)\]", lambda match: self.draw.choice(match[1].split("|")), sentence)
        return sentence

    def mistyped(self, part: str) -> str:
        """A piece of a sentence in which a letter may be missing, doubled or swapped."""
        if len(part) < 8 or self.draw.random() < 0.5:
            return part
        place = self.draw.randrange(1, len(part) - 2)
        one, two = part[place], part[place + 1]
        if not (one + two).isalpha():
            return part
        return part[:place] + self.draw.choice((two + one, one, one + one + two)) + part[place + 2 :]

    def of(self, name: str) -> str:
        """An entry of a list: every fifth one is held out."""
        return self.draw.choice(
            LISTS[name][::5] if self.held_out else [each for place, each in enumerate(LISTS[name]) if place % 5]
        )

    def any_of(self, name: str) -> str:
        """An entry of a list of which nothing is held out."""
        return self.draw.choice(LISTS[name])

    def formatted(self, name: str) -> str:
        """A value in one of the formats that this maker may use."""
        held_out = f"{name}, held out"
        return self.filled(self.any_of(held_out if self.held_out and held_out in LISTS else name))

    def filled(self, shape: str) -> str:
        """Digits and letters in the places of # and @."""
        digits = re.sub("#", lambda _: str(self.draw.randrange(10)), shape)
        return re.sub("@", lambda _: self.draw.choice("ABCDEFGHJKLMNPRSTUVWXYZ"), digits)

    def made_up(self, syllables: int) -> str:
        """A name of no list."""
        return "".join(self.draw.choices(LISTS["syllable"], k=syllables)).capitalize()

    def first(self) -> str:
        """A given name."""
        if not self.held_out and self.draw.random() < MADE_UP_SHARE:
            return self.made_up(self.draw.choice((2, 2, 3)))
        return self.of("first")

    def last(self) -> str:
        """A family name."""
        if not self.held_out and self.draw.random() < MADE_UP_SHARE:
            return self.made_up(self.draw.choice((2, 3, 3))) + self.draw.choice(FAMILY_ENDINGS)
        name = self.of("last")
        odd = self.draw.random()
        prefix = self.draw.choice(FAMILY_PREFIXES) if odd < 0.06 else ""
        return f"{name}-{self.of('last')}" if odd > 0.97 else prefix + name

    def person(self) -> str:
        """A whole name, in one of several orders."""
        first, last = self.first(), self.last()
        if self.draw.random() < 0.74:
            return f"{first} {last}"
        initial = self.draw.choice("ABCDEFGHJKLMNPRSTW")
        swapped, middle = f"{last}, {first}", f"{first} {self.first()} {last}"
        short = (f"{first} {initial}. {last}", f"{initial}. {last}")
        return self.draw.choice((*short, swapped, middle, first, f"{first} {last.upper()}"))

    def email(self) -> str:
        """An address made of a name, a word or both."""
        first, last, digits = (self.plain(each) for each in (self.first(), self.last(), self.filled("##")))
        tagged = f"{first}+{self.draw.choice(('shop', 'news', 'work'))}"
        joined = (f"{first}.{last}", f"{first}.{last}", f"{first[:1]}{last}", f"{first}{digits}", f"{first}_{last}")
        other = (f"{last}.{first}", f"{first}", f"{first}-{last}", tagged, self.draw.choice(MAILBOXES))
        local = self.draw.choice((*joined, *other))
        word = self.plain(self.of("company") if self.draw.random() < 0.7 else self.made_up(3))
        domain = word + self.draw.choice(("", "", "-mail", "group", "-shop"))
        host = self.any_of("provider") if self.draw.random() < 0.5 else f"{domain}.{self.any_of('tld')}"
        return f"{local}@{host}" if self.draw.random() < 0.9 else f"{local}@{host}".title()

    def plain(self, name: str) -> str:
        """A name in the letters of addresses."""
        return re.sub("[^a-z0-9]", "", name.lower()) or "me"

    def org(self) -> str:
        """A company or an institution."""
        name = self.of("company") if self.draw.random() < 0.6 else self.made_up(3)
        sector, suffix, city = self.any_of("sector"), self.any_of("suffix"), self.of("city")
        of_people = (f"{self.last()} {sector}", f"{self.last()} {suffix}", f"{self.last()} & {self.last()}")
        of_words = (f"{name} {sector}", f"{name} {sector}", f"{name} {suffix}", f"{name} {suffix}", name)
        of_towns = (f"University of {city}", f"{city} General Hospital", f"{city} City Council", f"Bank of {city}")
        joined = self.made_up(2) + self.draw.choice(("soft", "tech", "tel", "bank", "net", "corp"))
        letters = "".join(self.draw.choices("ABCDEFGHIKLMNOPRSTV", k=3))
        long = (f"{name} {sector} {suffix}", f"{city} {sector} {suffix}", f"{name} University", f"{letters} {sector}")
        others = (joined, f"St. {self.first()} Hospital", self.of("known"), self.of("known"))
        return self.draw.choice((*of_people, *of_words, *of_towns, *long, *others))

    def date(self) -> str:
        """A day of the calendar; with a month by name or in numbers, with or without the year."""
        day, month, year = self.draw.randint(1, 28), self.draw.randint(1, 12), self.draw.randint(1940, 2031)
        name = LISTS["month"][month - 1]
        short = name[:3]
        nth = f"{day}{ {1: 'st', 2: 'nd', 3: 'rd', 21: 'st', 22: 'nd', 23: 'rd'}.get(day, 'th') }"
        if self.held_out:
            named = (f"{day}. {name} {year}", f"{short}. {day}, {year}", f"{name} {day} {year}", f"{nth} of {name}")
            return self.draw.choice((*named, f"{day}/{month}/{year % 100:02}", f"{year}/{month:02}/{day:02}"))
        long = (f"{day} {name}", f"{name} {day}", f"{day} {name} {year}", f"{name} {day}, {year}")
        counted = (f"{nth} {name}", f"{name} {nth}", f"{nth} of {name} {year}")
        shorter = (f"{day}-{short}-{year}", f"{day} {short} {year}", f"{day} {short}", f"{short} {day}")
        full = (f"{day:02}/{month:02}/{year}", f"{day:02}-{month:02}-{year}", f"{year}-{month:02}-{day:02}")
        numbers = (f"{day}.{month}.{year}", f"{day:02}.{month:02}.{year % 100:02}", f"{month}/{day}/{year}")
        return self.draw.choice((*long, *counted, *shorter, *full, *numbers))

    def street_en(self) -> str:
        """A street as English has it."""
        name = self.of("street") if self.held_out or self.draw.random() < 0.7 else self.made_up(3)
        return f"{name} {self.any_of('street kind')}"

    def street(self) -> str:
        """A street as other languages have it."""
        made, german = self.made_up(2), ("straße", "strasse", "weg", "platz", "str.", "gasse", "allee")
        north = ("straße", "weg", "straat", "gatan", "laan", "vej", "gata")
        romance = ("Via ", "Rua ", "ul. ", "Piazza ", "Viale ", "Travessa ")
        return self.draw.choice(
            (
                self.of("german") + self.draw.choice(german),
                made + self.draw.choice(north),
                self.draw.choice(("rue ", "Rue ", "avenue ", "place ", "boulevard ")) + self.of("french"),
                self.draw.choice(("Calle ", "Plaza ", "Avenida ", "calle ", "C/ ")) + self.of("spanish"),
                self.draw.choice(romance) + (made if self.draw.random() < 0.5 else self.of("last")),
            )
        )

    def city(self) -> str:
        """A town."""
        if self.held_out or self.draw.random() < 0.85:
            return self.of("city")
        return self.made_up(3) + self.draw.choice(("", "burg", "ville", "ton", "ford"))

    def place(self) -> str:
        """A town, a country or both."""
        country = self.of("country")
        both = f"{self.city()}, {country.removeprefix('the ')}"
        return self.draw.choice((self.city(), self.city(), country, both))

    def address(self) -> str:
        """A street with its town, or parts of that."""
        form = self.any_of("address, held out" if self.held_out else "address")
        return re.sub(r"\{(\w+)\}", lambda match: self.value(match[1]), form)

    def number(self, slot: str) -> str:
        """A number or a time, which is not marked."""
        integer = self.draw.randint
        match slot:
            case "small":
                return str(integer(1, 12))
            case "number":
                return str(integer(2, self.draw.choice((20, 90, 300, 2000))))
            case "year":
                return str(integer(1950, 2030))
            case "time":
                hour = f"{integer(1, 12)} {self.draw.choice(('am', 'pm', 'p.m.', 'o’clock'))}"
                return self.draw.choice((f"{integer(0, 23)}:{self.draw.randrange(60):02}", hour))
            case "percent":
                return f"{integer(1, 99)}{self.draw.choice(('%', ' %', ' percent', '.5 %'))}"
            case _:
                return f"{integer(1, 12):02}/{integer(24, 35)}"  # when a card expires

    def value(self, slot: str) -> str:
        """What stands in the place of a slot, marked or not."""
        match slot:
            case "person" | "first" | "last" | "email" | "org" | "date" | "street" | "street_en":
                return str(getattr(self, slot)())
            case "city" | "place" | "address":
                return str(getattr(self, slot)())
            case "country":
                return self.of("country")
            case "product" | "month" | "day" | "state":
                return self.any_of(slot)
            case "small" | "number" | "year" | "time" | "percent" | "expiry":
                return self.number(slot)
            case _:
                return self.formatted(slot)
