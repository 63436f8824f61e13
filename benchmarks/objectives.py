"""What the papers of the family compared, at a scale of minutes: small models, equal steps.

- `masks`: masks drawn anew in every epoch, against fixed ones (RoBERTa, section 4.1)
- `sentence`: next sentence, sentence order, neither (ALBERT, section 4.6)
- `sharing`: one group of weights for all layers, against one each (ALBERT, section 4.5)
- `detection`: replaced tokens against masked tokens at equal compute (ELECTRA, section 3.4)
- `onset`: when the discriminator begins to tell replaced tokens, and from what
- `permutation`: tokens in any order against masked tokens (XLNet, section 3.1)
- `translations`: masked tokens beside a translation, and beside another text (XLM, section 3.3)
- `spans`: what is masked together (SpanBERT, section 5.1)
- `direction`: masked tokens against left to right (BERT, section C.2)
- `modern`: ModernBERT's parts one at a time, and all of them (arXiv 2412.13663, section 2.1), in
  models of seven layers of 320: 10 million weights
- `step_time`: ALBERT-base's step beside BERT-base's (ALBERT, section 4.3)

Models have two layers of 128 where nothing else is said, rows 64 tokens, batches 32 rows. With
learned positions they hardly come to use a masked token's neighbours in so few steps; with
`--positions=rotary` they do. A value with ± is the mean of the seeds, and half of what lies between
them.

`python -m benchmarks.objectives [masks …] [--text FILE] [--sst2 FOLDER] [--stsb FOLDER]
[--snli FOLDER] [--pairs SOURCE TARGET SOURCE TARGET] [--positions rotary] [--steps 1200]
[--seeds 0 1 2]`
"""

import argparse
import functools
import statistics
import time
from collections.abc import Callable, Iterable
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import ops

import kbert
from benchmarks import _experiments as experiments, _measures as measures
from benchmarks._experiments import mean, print_table
from kbert.data.masking.schemes import max_predictions
from kbert.layers import causal_bias
from kbert.models.blocks import layer_block
from kbert.models.parts import Part
from kbert.tasks.token_losses import token_losses
from kbert.training import AdamW

FULL_SIZE_BATCHES, FULL_SIZE_LENGTH, FULL_SIZE_STEPS = (2, 8), 128, 5
# ModernBERT's parts, each alone in BERT's block, and all. A gated feed-forward part has as many
# weights with two thirds of the width; 16 of 64 tokens are a window as 128 are of 512.
DEEP = {"num_layers": 7, "hidden_size": 320, "num_heads": 5, "intermediate_size": 1280}
# ELECTRA-small's, which is as wide. At that of the two-layer models, 2e-3, only blocks with norms
# before each part came to know more than the most frequent token.
DEEP_RATE = 5e-4
GATED = {"feed_forward": "gated", "intermediate_size": 856}
NO_BIASES = {"use_bias": False, "norm": "layer_no_bias"}
WINDOWS = {
    "attention_pattern": ("global", 16, 16)
}  # an eighth of a row on either side, as 128 of 512
MODERN_PARTS: dict[str, dict[str, Any]] = {
    "BERT's block": {},
    "rotary positions": {"positions": "rotary"},
    "norms before": {"block": "pre_norm_except_first"},
    "gated": GATED,
    "no biases": NO_BIASES,
    "windows": WINDOWS,
    "rotary, windows": {"positions": "rotary", **WINDOWS},
    "all": {
        **{"positions": "rotary", "block": "pre_norm_except_first"},
        **{**GATED, **NO_BIASES, **WINDOWS},
    },
}
FINE_TUNED = ("BERT's block", "all")
# What encoders are fine-tuned on, where the flag of this name gives the data.
BENCHMARKS = {"sst2": "SST-2", "stsb": "STS-B", "snli": "SNLI"}
SENTENCE_LABELS = {"pairs": "next_sentence_labels", "halves": "sentence_order_labels"}


class Laboratory:
    """The corpus and the flags; makes and keeps results."""

    def __init__(self, flags: argparse.Namespace):
        self.flags = flags
        settings = {name: vars(flags)[name] for name in ("text", *BENCHMARKS)}
        self.folder = experiments.results_folder(
            flags.output_dir, **settings, positions=flags.positions
        )

    @functools.cached_property
    def corpus(self) -> experiments.Corpus:
        """All of the text."""
        return experiments.prepare(self.flags.text, self.folder / "wordpiece")

    @functools.cached_property
    def small_corpus(self) -> experiments.Corpus:
        """A part that a run passes over many times, with the whole corpus' vocabulary."""
        tokenizer = self.corpus.tokenizer
        path, shards = self.folder / "small.txt", self.folder / "small"
        if not (shards / "manifest.json").exists():
            size = 0
            with open(path, "w", encoding="utf-8") as file:
                for document in kbert.text.documents(self.flags.text):
                    size += file.write("\n".join(document) + "\n\n")
                    if size > 1_000_000:
                        break
            # The same share as of the whole: by their hashes the same documents are held out.
            kbert.data.prepare_corpus(path, shards, tokenizer, held_out_share=0.03)
        return experiments.Corpus(shards, tokenizer)

    def config(self, **changes: Any) -> kbert.EncoderConfig:
        """The size of all runs; without a pooler where nothing reads it."""
        usual = {"pooler_activation": None, "positions": self.flags.positions}
        return experiments.config(self.corpus.tokenizer, **{**usual, **changes})

    def over_seeds(self, key: dict[str, Any], run: Callable[[int], dict]) -> list[dict]:
        """The results of all seeds, computed where they are missing."""
        return [
            experiments.once(
                self.folder / "results",
                {"steps": self.flags.steps, **key, "seed": seed},
                functools.partial(run, seed),
            )
            for seed in self.flags.seeds
        ]

    def masked_lm(
        self,
        name: str,
        *,
        corpus: experiments.Corpus | None = None,
        changes: dict[str, Any] | None = None,
        span_boundary: bool = False,
        tuned: bool = True,
        bfloat16: bool = False,
        **data: Any,
    ) -> list[dict]:
        """Pretraining with masks and, by its segments, a sentence objective; common measures.

        In bfloat16 it is measured once, at its end, and without XLA, whose processor code has no
        products in it.
        """
        data = {"segments": "single", "masking": "token", **data}
        sentence = data["segments"] in SENTENCE_LABELS
        changes = {**({"pooler_activation": "tanh"} if sentence else {}), **(changes or {})}

        def run(seed):
            dtype = "mixed_bfloat16" if bfloat16 else "float32"
            encoder = kbert.Encoder(self.config(**changes), dtype=dtype)
            task = kbert.tasks.Pretraining(
                encoder,
                self.corpus.tokenizer,
                next_sentence=data["segments"] == "pairs",
                sentence_order=data["segments"] == "halves",
                span_boundary=span_boundary,
            )
            train = (corpus or self.corpus).batches(seed=seed, **data)
            settings = {k: v for k, v in data.items() if k != "static_masks"}
            held_out = self.corpus.batches("held_out", **settings)
            how: dict[str, Any] = {}
            if bfloat16:
                optimizer = experiments.default_optimizer(self.flags.steps, DEEP_RATE)
                how = {"jit_compile": False, "evaluations": 1, "optimizer": optimizer}
            result = experiments.learn(task, train, held_out, self.flags.steps, **how)
            common = measures.masked_lm_score(task, self.corpus)
            result |= {f"common_{name}": value for name, value in common.items()}
            result["span_loss"] = measures.masked_lm_score(task, self.corpus, "span")["mlm_loss"]
            if tuned:
                result |= self.fine_tune(encoder, seed)
            if data["segments"] in ("pairs", "halves") or name == "token":
                for segments, label in SENTENCE_LABELS.items():
                    result[f"probe_{segments}"] = measures.probe(
                        encoder, self.corpus, segments, label
                    )
            return result

        key = {"name": name, "data": data, "changes": changes, "span_boundary": span_boundary}
        key |= {"bfloat16": True, "tuned": tuned, "rate": DEEP_RATE} if bfloat16 else {}
        return self.over_seeds(key, run)

    def fine_tune(
        self, encoder: kbert.Encoder, seed: int, names: Iterable[str] = tuple(BENCHMARKS)
    ) -> dict[str, float]:
        """What copies of the encoder reach after fine-tuning; nothing where there is no data."""
        results = {}
        for name in names:
            if folder := vars(self.flags)[name]:
                learn = (
                    measures.fine_tune
                    if name == "sst2"
                    else functools.partial(measures.fine_tune_on_pairs, name=name)
                )
                results[name] = learn(encoder, self.corpus, folder=folder, seed=seed)
        return results

    def token(self) -> list[dict]:
        """Tokens masked one by one, one segment a row: what the others are compared with."""
        return self.masked_lm("token")

    def untrained(self) -> list[dict]:
        """Fine-tuning from random weights."""

        def run(seed):
            return self.fine_tune(kbert.Encoder(self.config()), seed)

        return self.over_seeds({"name": "untrained", "steps": 0}, run)


def fine_tuned(results: list[dict]) -> tuple[str, ...]:
    """The cells of a table for `BENCHMARKS`."""
    return tuple(mean(results, name) if name in results[0] else "" for name in BENCHMARKS)


def masks(lab: Laboratory) -> None:
    """Fixed masks are learned by heart."""
    variants = {"one, fixed": 1, "three, in turn": 3, "new in every epoch": None}
    rows = []
    for title, versions in variants.items():
        name = f"masks-{versions or 'dynamic'}"
        found = lab.masked_lm(name, corpus=lab.small_corpus, static_masks=versions, tuned=False)
        columns = ("train_loss", "common_mlm_loss", "common_mlm_accuracy")
        rows.append((title, *(mean(found, column) for column in columns)))
    tokens = kbert.data.read_manifest(lab.small_corpus.folder).split("train").tokens
    epochs = lab.flags.steps * experiments.BATCH * experiments.LENGTH / tokens
    print_table(
        (f"masks over {epochs:.0f} epochs", "loss in training", "held-out loss", "accuracy"), rows
    )


def sentence(lab: Laboratory) -> None:
    """What a sentence objective adds, and whether it teaches the other one."""
    found = {
        "none": lab.token(),
        "next sentence": lab.masked_lm("nsp", segments="pairs"),
        "sentence order": lab.masked_lm("sop", segments="halves"),
    }
    own = {"next sentence": "nsp", "sentence order": "sop"}
    columns = ("common_mlm_loss", "common_mlm_accuracy", "probe_pairs", "probe_halves")
    rows = [
        (
            title,
            *(
                mean(results, f"{own[title]}_{value}") if title in own else ""
                for value in ("accuracy", "majority")
            ),
            *(mean(results, column) for column in columns),
            *fine_tuned(results),
        )
        for title, results in found.items()
    ]
    own_columns = ("its own accuracy", "the more frequent answer")
    header = ("objective", *own_columns, "held-out masked-LM loss", "accuracy")
    print_table((*header, "probe: next sentence", "probe: order", *BENCHMARKS.values()), rows)


def sharing(lab: Laboratory) -> None:
    """Four layers with their own weights, with two groups, and with one."""
    rows = []
    for groups in (4, 2, 1):
        changes = {"num_layers": 4, "num_layer_groups": groups}
        found = lab.masked_lm(f"groups-{groups}", changes=changes)
        columns = ("common_mlm_loss", "common_mlm_accuracy")
        values = (mean(found, column) for column in columns)
        rows.append((groups, f"{found[0]['parameters']:,}", *values, *fine_tuned(found)))
    header = ("groups of weights", "parameters", "held-out loss", "accuracy")
    print_table((*header, *BENCHMARKS.values()), rows)


def detection(lab: Laboratory) -> None:
    """Every token teaches the discriminator; its generator costs steps."""
    config = lab.config()
    generator = kbert.tasks.generator_config(config)
    masked = max_predictions(experiments.LENGTH)
    alone = measures.multiplications(config, masked)
    both = measures.multiplications(generator, masked) + measures.multiplications(config)
    steps = round(lab.flags.steps * alone / both / experiments.EVALUATIONS)
    steps *= experiments.EVALUATIONS

    def run(seed):
        return detect(lab, kbert.Encoder(config), steps, seed)

    found = lab.over_seeds({"name": "detection", "steps": steps}, run)
    rows = [
        ("no pretraining", 0, *fine_tuned(lab.untrained())),
        ("masked tokens", lab.flags.steps, *fine_tuned(lab.token())),
        ("replaced tokens", steps, *fine_tuned(found)),
    ]
    print_table(("objective", "steps of equal compute in all", *BENCHMARKS.values()), rows)
    shown = ("mlm_accuracy", "rtd_recall", "rtd_precision", "replaced_share")
    print(", ".join(f"{name} {mean(found, name)}" for name in shown))


def detect(lab: Laboratory, encoder: kbert.Encoder, steps: int, seed: int) -> dict[str, Any]:
    """ELECTRA's pretraining of an encoder."""
    generator = kbert.tasks.generator_config(encoder.config)
    task = kbert.tasks.ReplacedTokenDetection(
        encoder, lab.corpus.tokenizer, generator=generator, seed=seed
    )
    data = {"segments": "single", "masking": "independent"}
    held_out = lab.corpus.batches("held_out", **data)
    result = experiments.learn(task, lab.corpus.batches(seed=seed, **data), held_out, steps)
    return {**result, **lab.fine_tune(encoder, seed)}


def onset(lab: Laboratory) -> None:
    """A discriminator that can read context already, and one that has four times as long."""
    steps = lab.flags.steps

    def fresh(seed):
        return detect(lab, kbert.Encoder(lab.config()), 4 * steps, seed)

    def after_masks(seed):
        encoder = kbert.Encoder(lab.config())
        data = {"segments": "single", "masking": "token"}
        held_out = lab.corpus.batches("held_out", **data)
        task = kbert.tasks.Pretraining(encoder, lab.corpus.tokenizer, next_sentence=False)
        experiments.learn(task, lab.corpus.batches(seed=seed, **data), held_out, steps)
        return detect(lab, encoder, steps, seed)

    runs = {"fresh": ("random weights", fresh), "warm": ("masked tokens' weights", after_masks)}
    rows = []
    for name, (title, run) in runs.items():
        found = lab.over_seeds({"name": f"onset-{name}"}, run)
        for at in range(experiments.EVALUATIONS):
            points = [result["curve"][at] for result in found]
            shares = [point["replaced_share"] for point in points]
            # What a discriminator that says the share for every token pays.
            known = statistics.mean(-p * np.log(p) - (1 - p) * np.log(1 - p) for p in shares)
            columns = ("rtd_recall", "rtd_precision", "mlm_accuracy")
            loss = f"{statistics.mean(point['rtd_loss'] for point in points) / known:.3f}"
            values = (mean(points, column) for column in columns)
            is_last = at == experiments.EVALUATIONS - 1
            after = fine_tuned(found) if is_last else [""] * len(BENCHMARKS)
            rows.append((title, points[0]["step"], loss, *values, *after))
    header = ("from", "step", "loss over its base", "recall", "precision", "generator's accuracy")
    print_table((*header, *BENCHMARKS.values()), rows)


def permutation(lab: Laboratory) -> None:
    """Tokens in any order, at equal steps: an XLNet as wide and as deep."""
    sizes = {k: v for k, v in experiments.SIZES.items() if k != "max_positions"}
    size = {"vocabulary_size": lab.corpus.tokenizer.vocabulary_size, **sizes}
    config = kbert.configs.XlnetConfig(**size, pooler_activation=None)
    data = {"segments": "single", "masking": "permutation", "masked_share": 1 / 6}

    def run(seed):
        encoder = kbert.Encoder(config)
        task = kbert.tasks.PermutationLM(encoder, lab.corpus.tokenizer)
        held_out = lab.corpus.batches("held_out", **data)
        train = lab.corpus.batches(seed=seed, **data)
        result = experiments.learn(task, train, held_out, lab.flags.steps)
        return {**result, **lab.fine_tune(encoder, seed, ["sst2"])}

    def untrained(seed):
        return lab.fine_tune(kbert.Encoder(config), seed, ["sst2"])

    begun = lab.over_seeds({"name": "untrained-xlnet", "steps": 0}, untrained)
    found = lab.over_seeds({"name": "permutation"}, run)
    token = lab.token()
    rows = [
        ("BERT", "none", "", "", *fine_tuned(lab.untrained())),
        ("BERT", "masked tokens", mean(token, "mlm_loss"), mean(token, "mlm_accuracy"),
         *fine_tuned(token)),
        ("XLNet", "none", "", "", *fine_tuned(begun)),
        ("XLNet", "permutations", mean(found, "plm_loss"), mean(found, "plm_accuracy"),
         *fine_tuned(found)),
    ]  # fmt: skip
    header = ("model", "objective", "loss on its own tokens", "accuracy", *BENCHMARKS.values())
    print_table(header, rows)


def translations(lab: Laboratory) -> None:
    """What a text's translation adds to the text, and that it is the translation that adds it."""
    if not lab.flags.pairs:
        print("without --pairs there are none")
        return
    folder, (source, target, *held_out) = lab.folder / "pairs", lab.flags.pairs
    pairs = kbert.text.read_pairs(source, target)
    if not (folder / "train" / "manifest.json").exists():
        sentences = (text for pair in pairs for text in pair)
        vocabulary = kbert.tokenizers.train_wordpiece(sentences, experiments.VOCABULARY)
        tokenizer = kbert.WordPieceTokenizer(vocabulary)
        sides = [list(side) for side in zip(*kbert.text.read_pairs(*held_out), strict=True)]
        folder.mkdir(parents=True, exist_ok=True)
        for name, shift in (("translation", 0), ("other", len(sides[0]) // 2)):
            other = sides[1][shift:] + sides[1][:shift]
            lines = (f"{one}\t{two}\n" for one, two in zip(sides[0], other, strict=True))
            (folder / f"{name}.tsv").write_text("".join(lines), encoding="utf-8")
            beside = kbert.text.read_pairs(folder / f"{name}.tsv").aligned_documents()
            kbert.data.prepare_corpus(beside, folder / name, tokenizer, held_out_share=0)
        text = folder / "alone.txt"
        text.write_text("\n\n".join(sides[0] + sides[1]), encoding="utf-8")
        kbert.data.prepare_corpus(text, folder / "alone", tokenizer, held_out_share=0)
        kbert.data.prepare_corpus(
            pairs.aligned_documents(), folder / "train", tokenizer, held_out_share=0
        )
    tokenizer = kbert.load_tokenizer(folder / "train")
    data = {"segments": "aligned", "masking": "token"}
    changes = {"pooler_activation": None, "positions": lab.flags.positions}

    def run(seed):
        encoder = kbert.Encoder(experiments.config(tokenizer, **changes))
        task = kbert.tasks.Pretraining(encoder, tokenizer, next_sentence=False)
        train = experiments.Corpus(folder / "train", tokenizer).batches(seed=seed, **data)
        beside = {}
        for name in ("translation", "other", "alone"):
            how = {**data, "segments": "single"} if name == "alone" else data
            corpus = experiments.Corpus(folder / name, tokenizer)
            beside[name] = corpus.batches(epochs=1, seed=0, **how)
        result = experiments.learn(task, train, beside["translation"], lab.flags.steps)
        for name, batches in beside.items():
            found = task.evaluate(batches, return_dict=True, verbose=0)
            result[name] = found["mlm_accuracy"]
        return result

    found = lab.over_seeds({"name": "translations", "positions": lab.flags.positions}, run)
    columns = ("translation", "other", "alone")
    print_table(
        ("steps", "accuracy beside the translation", "beside another text", "alone"),
        [(lab.flags.steps, *(mean(found, column) for column in columns))],
    )


def spans(lab: Laboratory) -> None:
    """Schemes of masking, each with 15 % of the tokens."""
    found = {
        "token": lab.token(),
        "whole word": lab.masked_lm("whole_word", masking="whole_word"),
        "n-gram": lab.masked_lm("ngram", masking="ngram"),
        "span": lab.masked_lm("span", masking="span"),
        "span, boundary objective": lab.masked_lm(
            "span-boundary", masking="span", span_boundary=True
        ),
    }
    columns = ("mlm_loss", "common_mlm_loss", "span_loss")
    rows = [
        (title, *(mean(results, column) for column in columns), *fine_tuned(results))
        for title, results in found.items()
    ]
    header = ("masked", "loss on its own masks", "on tokens'", "on spans'")
    print_table((*header, *BENCHMARKS.values()), rows)


class LeftToRight(keras.layers.Layer):
    """BERT's block, in which a token sees itself and those before it."""

    def __init__(self, config: kbert.EncoderConfig, layer: int, **kwargs):
        super().__init__(**kwargs)
        self.block = layer_block(config, layer=layer, dtype=self.dtype_policy, name="block")

    def build(self, input_shape):
        self.block.build(input_shape)

    def call(self, x, bias=None, training=False):
        bias = (0.0 if bias is None else bias) + causal_bias(ops.shape(x)[1])  # (B, 1, T, T)
        return self.block(x, bias, training=training)


class Causal(Part):
    """Of an encoder whose blocks are `LeftToRight`."""

    kind = "left_to_right"

    def count_parameters(self, config):
        return 0

    def make_block(self, config, *, layer, **kwargs):
        return LeftToRight(config, layer, **kwargs)


class NextToken(kbert.tasks.Pretraining):
    """Predicts each token of a text from those before it; reads what the masks hide."""

    def loss_terms(self, batch, training):
        ids = unmasked(batch)
        sequence = self.encode({**batch, "token_ids": ids}, training)["sequence"]
        rows, length = ops.shape(ids)
        places = ops.broadcast_to(ops.arange(length - 1), (rows, length - 1))
        output = self.masked_lm.token_output(sequence, places)
        answer = (output, ids[:, 1:], batch["padding_mask"][:, 1:])
        found = token_losses(*answer, training=training)
        return {"mlm_loss": found.smoothed}, {"mlm_accuracy": found.accuracy()}


def unmasked(batch: dict[str, Any]) -> Any:
    """The text's own ids (B, T)."""
    places = batch["mask_positions"]
    present = ops.take_along_axis(batch["token_ids"], places, axis=1)
    ids = ops.where(batch["mask_weights"] > 0, batch["mask_ids"], present)
    rows = ops.broadcast_to(ops.arange(ops.shape(places)[0])[:, None], ops.shape(places))
    where = ops.reshape(ops.stack([rows, places], axis=-1), (-1, 2))
    return ops.scatter_update(batch["token_ids"], where, ops.reshape(ids, (-1,)))


def direction(lab: Laboratory) -> None:
    """What is learned by when, told by fine-tuning at an eighth, half and all of the steps."""
    every = lab.flags.steps // experiments.EVALUATIONS
    points = tuple(every * n for n in (1, experiments.EVALUATIONS // 2, experiments.EVALUATIONS))

    def run(kind, part, seed):
        encoder = kbert.Encoder(lab.config().replace(part=part))
        task = kind(encoder, lab.corpus.tokenizer, next_sentence=False)
        data = {"segments": "single"}
        return experiments.learn(
            task,
            lab.corpus.batches(seed=seed, **data),
            lab.corpus.batches("held_out", **data),
            lab.flags.steps,
            at_evaluation=measures.measured_by(lab.fine_tune, encoder, seed, points=points),
        )

    rows = []
    for title, kind, part in (
        ("masked tokens, both directions", kbert.tasks.Pretraining, None),
        ("every next token, left to right", NextToken, {"name": Causal.name}),
    ):
        name = f"direction-{kind.__name__}"
        found = lab.over_seeds({"name": name}, functools.partial(run, kind, part))
        curves = [{p["step"]: p for p in result["curve"]} for result in found]
        reviews = (mean([curve[p] for curve in curves], "probe") for p in points)
        rows.append((title, *reviews, mean(found, "mlm_loss"), mean(found, "mlm_accuracy")))
    header = ("objective", *(f"SST-2 after {point:,} steps" for point in points))
    print_table((*header, "own held-out loss", "own accuracy"), rows)


def modern(lab: Laboratory) -> None:
    """What each of ModernBERT's parts does in BERT's block, at equal steps."""
    rows = []
    for title, parts in MODERN_PARTS.items():
        changes = {**DEEP, "positions": "learned", **parts}
        # Models that were not trained at all do as well on SST-2 after so few steps: not for all.
        tuned = title in FINE_TUNED
        found = lab.masked_lm(f"modern-{title}", changes=changes, tuned=tuned, bfloat16=True)
        values = (mean(found, f"common_{column}") for column in ("bits", "mlm_accuracy"))
        minutes = statistics.mean(result["seconds"] for result in found) / 60
        rows.append(
            (title, f"{found[0]['parameters']:,}", *values, *fine_tuned(found), f"{minutes:.1f}")
        )
    header = ("block", "parameters", "bits per byte", "accuracy", *BENCHMARKS.values(), "minutes")
    print_table(header, rows)


def step_time(lab: Laboratory) -> None:
    """A training step at full size, in turn; the smaller the batch, the more its update counts."""
    tasks = {}
    for name in ("bert-base-uncased", "albert-base-v2"):
        rates = {"dropout": 0.0, "attention_dropout": 0.0}  # ALBERT has none; so has neither here
        config = kbert.family(name).replace(pooler_activation=None, **rates)
        tasks[name] = kbert.tasks.Pretraining(
            kbert.Encoder(config), lab.corpus.tokenizer, next_sentence=False
        )
        tasks[name].compile(AdamW(1e-4), jit_compile=False)
    rows = []
    for rows_in_batch in FULL_SIZE_BATCHES:
        batch, seconds = full_size_batch(rows_in_batch), {name: [] for name in tasks}
        for _ in range(FULL_SIZE_STEPS + 1):
            for name, task in tasks.items():
                task.prepare(tf.nest.map_structure(tf.TensorSpec.from_tensor, batch))
                began = time.perf_counter()
                task.train_on_batch(batch)
                seconds[name].append(time.perf_counter() - began)
        times = {name: statistics.median(s[1:]) for name, s in seconds.items()}  # the first traces
        bert, albert = times.values()
        shape = f"{rows_in_batch} x {FULL_SIZE_LENGTH}"
        rows.append((shape, f"{bert * 1e3:.0f}", f"{albert * 1e3:.0f}", f"{albert / bert:.2f}"))
    counts = (f"{name}, {task.count_params():,}: ms" for name, task in tasks.items())
    print_table(("tokens", *counts, "ratio"), rows)


def full_size_batch(rows: int) -> dict[str, tf.Tensor]:
    """Random tokens."""
    rng, length = np.random.default_rng(0), FULL_SIZE_LENGTH
    masked = max_predictions(length)

    def whole(low, high, columns):
        return tf.constant(rng.integers(low, high, (rows, columns)), tf.int32)

    return {
        "token_ids": whole(5, 20000, length),
        "padding_mask": tf.ones((rows, length), tf.int32),
        "mask_positions": whole(1, length, masked),
        "mask_ids": whole(5, 20000, masked),
        "mask_weights": tf.ones((rows, masked)),
    }


COMPARISONS = {
    function.__name__: function
    for function in (
        *(masks, sentence, sharing, detection, onset, permutation, translations, spans),
        *(direction, modern, step_time),
    )
}


def main() -> None:
    parser = experiments.parser("objectives", __doc__, steps=1200)
    parser.add_argument("--sst2", help="folder with SST-2's train.tsv.gz and dev.tsv")
    parser.add_argument("--stsb", help="folder with STS-B's en-train.tsv and en-dev.tsv")
    parser.add_argument("--snli", help="folder with SNLI's dev.tsv and test.tsv")
    parser.add_argument(
        "--pairs", nargs=4, metavar=("SOURCE", "TARGET", "HELD_OUT_SOURCE", "HELD_OUT_TARGET"),
        help="two files of texts with their translations, line by line; twice",
    )  # fmt: skip
    choices = ("learned", "rotary")
    parser.add_argument("--positions", default="learned", choices=choices, help="of all models")
    flags = parser.parse_args()
    unknown = set(flags.names) - set(COMPARISONS)
    if unknown or flags.steps % experiments.EVALUATIONS:
        parser.error(
            f"names are {', '.join(COMPARISONS)}, and --steps is a multiple of "
            f"{experiments.EVALUATIONS}. Received: {flags.names}, {flags.steps}"
        )
    experiments.set_threads(flags.threads)
    lab = Laboratory(flags)
    for name in flags.names or COMPARISONS:
        print(f"\n{name}: {COMPARISONS[name].__doc__}", flush=True)
        COMPARISONS[name](lab)


if __name__ == "__main__":
    main()
