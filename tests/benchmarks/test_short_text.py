"""What one short text costs: the texts that are measured."""

from benchmarks.models.demo_request import BUNDLES
from benchmarks.models.short_text import encoded, text_of

from attenuator.runtime.model import load


def test_a_text_has_nearly_as_many_tokens_as_asked_for_and_no_more() -> None:
    model = load(BUNDLES / "reviews", check=False, threads=1)
    for tokens in (3, 10, 47):
        for seed in range(5):
            count = len(encoded(model, text_of(model, tokens, seed)).token_ids)
            assert tokens - 3 <= count <= tokens
    assert text_of(model, 10, 0) != text_of(model, 10, 1)
