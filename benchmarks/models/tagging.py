"""Token classification beside the transformers pipeline and ONNX Runtime's dynamic int8, on the same texts.

    python -m benchmarks.models.tagging --texts FILE.jsonl

A BERT of `--layers` layers and `--hidden` channels with random weights tags the first `--count` texts: as the pipeline
of transformers does in PyTorch (one text at a time, its default, and in batches), as ONNX Runtime runs the padded
batches of the same tokens in fp32 and in its dynamic int8 (without the tokenizer and without grouping tokens, which
favours it), and as `attenuator.load(bundle).classify` answers them with tokenizer and entities, in fp32 and int8. CPU
time in turns in one process, on `--threads` threads. What fp32 answers is compared with the pipeline span by span.
"""

import json
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

import attenuator
from attenuator.export import export
from benchmarks.contenders.documents import Documents
from benchmarks.contenders.padded import export_onnx, pad, session
from benchmarks.measure.program import parser_for
from benchmarks.measure.timing import cpu_sampler, interleave

LABELS = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC", "B-ORG", "I-ORG", "B-MISC", "I-MISC"]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
VOCAB, BATCH = 30_000, 32
PIPELINE = "transformers pipeline"


def checkpoint(folder: Path, texts: Sequence[str], layers: int, hidden: int, tokens: int) -> Any:
    """Writes a tagger of random weights; its model and tokenizer."""
    inner = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    inner.normalizer, inner.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    inner.decoder = decoders.WordPiece()
    inner.train_from_iterator(texts, trainers.WordPieceTrainer(vocab_size=VOCAB, special_tokens=SPECIAL))
    inner.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    names = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token"), SPECIAL, strict=False))
    inputs = ["input_ids", "token_type_ids", "attention_mask"]
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner, model_max_length=tokens, model_input_names=inputs, **names
    )
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=inner.get_vocab_size(),
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 64,
        intermediate_size=4 * hidden,
        max_position_embeddings=tokens,
        id2label=dict(enumerate(LABELS)),
        label2id={label: place for place, label in enumerate(LABELS)},
        initializer_range=0.05,
    )
    model: Any = transformers.BertForTokenClassification(config).eval()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return model, tokenizer


def run_padded(ort: Any, documents: Documents, *, by_length: bool) -> None:
    """Runs ONNX Runtime over padded batches."""
    names = {value.name for value in ort.get_inputs()}
    for batch in documents.batches(by_length=by_length):
        arrays = pad([documents.ids[place] for place in batch])
        ort.run(["logits"], {name: array for name, array in arrays.items() if name in names})


def spans(entities: Sequence[Any]) -> list[tuple[str, int, int]]:
    """Label, start and end of the pipeline's entities."""
    return [(each["entity_group"], each["start"], each["end"]) for each in entities]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the program."""
    parser = parser_for(__doc__, seconds=60)
    parser.add_argument("--texts", type=Path, required=True, help="JSON lines with a field text")
    parser.add_argument("--words", type=int, default=60, help="words of a text; longer ones are cut")
    parser.add_argument("--count", type=int, default=64)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--hidden", type=int, default=384)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args(arguments)
    lines = options.texts.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    texts = [" ".join(json.loads(line)["text"].split()[: options.words]) for line in lines]
    torch.set_num_threads(options.threads)
    transformers.utils.logging.set_verbosity_error()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        model, tokenizer = checkpoint(folder / "checkpoint", texts, options.layers, options.hidden, 512)
        for precision in ("fp32", "int8"):
            export(str(folder / "checkpoint"), output=folder / precision, precision=precision)
        texts = texts[: options.count]
        documents = Documents(tuple(tokenizer(texts)["input_ids"]), 512, tuple(texts), batch_size=BATCH)
        pipe = transformers.TokenClassificationPipeline(
            model=model, tokenizer=tokenizer, aggregation_strategy="simple", device=torch.device("cpu")
        )
        files = export_onnx(model, folder)
        ours = {name: attenuator.load(folder / name, threads=options.threads) for name in ("fp32", "int8")}
        expected = [spans(entities) for entities in pipe(texts)]
        answers = ours["fp32"].classify(texts).predictions
        found = [[(each.label, each.start, each.end) for each in one.entities or ()] for one in answers]
        same = sum(a == b for a, b in zip(found, expected, strict=True))
        contenders: dict[str, Callable[[], Any]] = {PIPELINE: lambda: pipe(texts)}
        contenders[f"{PIPELINE}, batches of {BATCH}"] = lambda: pipe(texts, batch_size=BATCH)
        for name in ("fp32", "int8"):
            padded = session(files[name], options.threads)
            contenders[f"ONNX Runtime {name}"] = partial(run_padded, padded, documents, by_length=False)
            contenders[f"ONNX Runtime {name}, sorted"] = partial(run_padded, padded, documents, by_length=True)
            contenders[f"Attenuator {name}"] = partial(ours[name].classify, texts)
        # CPU time of the process: a bundle runs its batches in threads of its own.
        timings = interleave(contenders, sampler=cpu_sampler(os.cpu_count() or 2), seconds=options.seconds)
    print(f"{len(texts)} texts of {np.mean(documents.lengths):.0f} tokens; fp32: {same} have the pipeline's spans\n")
    print("| | ms a text | times the pipeline | times ONNX Runtime int8 |", "|---|---|---|---|", sep="\n")
    for name, timing in timings.items():
        ratios = (timing.times_faster_than(timings[other])["median"] for other in (PIPELINE, "ONNX Runtime int8"))
        print(f"| {name} | {timing.median / 1e3 / len(texts):.2f} |", *(f"{ratio:.2f} |" for ratio in ratios))
    return 0


if __name__ == "__main__":
    sys.exit(main())
