"""What `attenuator export` can be told: one class gives flags, `ATTENUATOR_*` variables and help."""

from __future__ import annotations

import argparse
import inspect
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, NoReturn

from pydantic import ValidationError
from pydantic_settings import (
    BaseSettings,
    CliApp,
    CliPositionalArg,
    CliSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

__all__ = ["ExportSettings", "parse"]

PROGRAM = "attenuator export"
ENV_PREFIX = "ATTENUATOR_"
EXAMPLES = """\
SOURCE is one of
  a folder      that transformers' save_pretrained wrote, weights and tokenizer in it: a sequence classifier of the
                family BERT, RoBERTa, XLM-RoBERTa, DistilBERT, ELECTRA, ALBERT, ModernBERT or YOSO; or a checkpoint of
                the project's own encoder
  FILE.py:NAME  a function in a file of yours that takes nothing and returns (model, tokenizer, labels);
                labels None takes those of the model's config

which --attention?
  softmax  exact attention, no knob: the baseline, for any model trained with softmax attention
  mca      for the same models: the knob alpha trades accuracy for time in the value projection; 0 is exact
  yoso     for models trained with YOSO attention: the knob num_hashes makes attention linear in length; 0 is exact

Before the bundle appears, its graph is compared with the PyTorch model on sequences of many lengths, with the operators
and without them; the differences are written to bundle.json under provenance.parity.

A note on YOSO checkpoints of transformers: that library lets YOSO attend to padding, so its output for a padded batch
depends on the padding. Bundles have no padding; they give what transformers gives for each sequence alone.

examples:
  attenuator export checkpoints/sst2-bert --attention mca --output bundles/sentiment
  attenuator export checkpoints/long-yoso --attention yoso --output bundles/contracts --max-tokens 4096
  attenuator export mymodel.py:load --attention softmax --output bundles/baseline --name baseline

exit codes: 0 the bundle is there, 1 the model cannot be exported, 2 wrong words; errors are one sentence on stderr"""


class ExportSettings(BaseSettings):
    """Turn a trained text classifier into a bundle that `attenuator serve` runs."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX,
        cli_kebab_case=True,
        cli_hide_none_type=True,
        cli_avoid_json=True,
        use_attribute_docstrings=True,
    )

    source: CliPositionalArg[str]
    """Checkpoint folder, or FILE.py:NAME; see below."""
    attention: Literal["softmax", "mca", "yoso"]
    """Operator that computes attention; see below."""
    output: Path
    """Folder of the bundle; a bundle that is there already is replaced, anything else is left alone."""
    name: str | None = None
    """What requests call the model; the output folder's name by default."""
    max_tokens: int | None = None
    """Longest input, special tokens included; what model and tokenizer take by default."""
    estimator: Literal["sampled", "deterministic", "paper"] | None = None
    """MCA only: `sampled` (unbiased, the default), `deterministic` (its bound always holds), `paper` (as published)."""
    knob_default: float | None = None
    """The knob's value where a request sets none; the checkpoint's or the operator's own by default."""
    data: str = ""
    """What the model was trained on, kept in bundle.json under provenance."""
    licence: str = ""
    """Licence of the weights, kept in bundle.json under provenance."""


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Keeps the layout of the text below the flags, names values by their flag, leaves out empty defaults."""

    def _metavar_formatter(self, action: argparse.Action, default_metavar: str) -> Callable[[int], tuple[str, ...]]:
        if action.option_strings and not action.choices and "{" not in str(action.metavar):
            return lambda size: (action.dest.upper(),) * size
        return super()._metavar_formatter(action, default_metavar)

    def _get_help_string(self, action: argparse.Action) -> str | None:
        text = super()._get_help_string(action)
        return text and re.sub(r" \((default: (None|)|required)\)$", "", text)


class Parser(argparse.ArgumentParser):
    """Tells what is wrong in one sentence."""

    def error(self, message: str) -> NoReturn:
        """Ends the program with exit code 2."""
        fail(message)


def fail(sentence: str) -> NoReturn:
    """Says what is wrong with the command's words and ends it.

    Raises:
        SystemExit: always, with exit code 2.
    """
    print(f"{PROGRAM}: {sentence}; `{PROGRAM} --help` explains", file=sys.stderr)
    raise SystemExit(2)


def parse(arguments: Sequence[str]) -> ExportSettings:
    """Reads the words after `attenuator export` and the environment.

    Raises:
        SystemExit: 0 after `--help`, 2 where a word or a variable is wrong.
    """
    parser = Parser(
        prog=PROGRAM,
        usage=f"{PROGRAM} SOURCE --attention {{softmax,mca,yoso}} --output BUNDLE [options]",
        description=inspect.cleandoc(ExportSettings.__doc__ or ""),
        epilog=EXAMPLES,
        formatter_class=HelpFormatter,
        allow_abbrev=False,
    )
    source: CliSettingsSource[argparse.ArgumentParser] = CliSettingsSource(ExportSettings, root_parser=parser)
    try:
        return CliApp.run(ExportSettings, cli_args=list(arguments), cli_settings_source=source)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = str(first["loc"][0])
        word = "SOURCE" if name == "source" else f"--{name.replace('_', '-')}"
        if first["type"] == "missing":
            fail(f"{word} is missing")
        fail(f"{word} is {first['input']!r}: {first['msg'][0].lower()}{first['msg'][1:]}")
    except SettingsError as error:
        fail(str(error))
