"""A Longformer made of a BERT is that BERT where its windows reach over the text."""

from pathlib import Path

import torch
from benchmarks.contenders.longformers import longformer_of
from checkpoints import CHECKPOINTS, save
from transformers import BertForSequenceClassification


def test_answers_stay_within_the_window_and_longer_texts_are_read(tmp_path: Path) -> None:
    bert = BertForSequenceClassification.from_pretrained(save(CHECKPOINTS["bert"], tmp_path / "bert")).eval()
    ids = torch.randint(5, bert.config.vocab_size, (2, 40), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[1, 23:] = ids[1, 23:] = 0
    with torch.no_grad():
        for window, is_same in ((128, True), (8, False)):
            model = longformer_of(bert, 150, window).eval()
            logits, expected = (one(input_ids=ids, attention_mask=mask).logits for one in (model, bert))
            assert torch.allclose(logits, expected, atol=1e-5) is is_same
        assert model(input_ids=ids.repeat(1, 3)).logits.isfinite().all()
