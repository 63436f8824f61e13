"""Encoder-decoders beside KerasHub and transformers: a training step, and decoding with a cache.

BART-base and T5-small on random weights, 8 sources of 128 tokens. `train`: forward, backward,
clipping by the global norm at 1.0 and AdamW on targets of 128 tokens, dropout 0.1; kbert's step is
what `fit` of a `Translator` calls. `decode`: 64 new tokens, greedy and with beams of 4; no token
ends a text, so all decode equally many. transformers runs in PyTorch.

BART's weights are those of one folder of transformers, which kbert and KerasHub load. Before the
table, the losses without dropout and the decoded tokens are compared with transformers'. KerasHub
has no converter for T5, so its T5 has weights of its own.

Every contender runs in turn, round after round, so that a busy machine is busy for all. Medians;
ratios against kbert's first row, of wall time and of processor time (which other programs on the
machine hardly change). "First" is the first call's seconds, tracing and compiling included.

`python -m benchmarks.encoder_decoders [train decode] [--models bart-base t5-small]
[--dtypes float32 mixed_bfloat16] [--rounds 5] [--only kbert KerasHub …] [--smoke] [--profile]`:
`--smoke` runs everything on tiny models, `--profile` prints where the time of kbert's step and of
its decoding loops goes.
"""

import argparse
import dataclasses
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # torch's threads must not spin while TF works

import keras
import numpy as np
import tensorflow as tf

import kbert
from benchmarks._experiments import print_table
from benchmarks.pretraining_step import profile
from kbert.decoding import Beam, Greedy, decode
from kbert.training import AdamW

RATE, START, SPECIALS = 1e-4, 5, 10  # random tokens are above the special ones
BEAMS = {"greedy": 1, "beams of 4": 4}


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Sizes of a model and of its batches.

    Attributes:
        vocabulary: number of tokens.
        hidden: width of the residual streams.
        layers: number of blocks of each side.
        heads: number of attention heads.
        inner: width inside the feed-forward parts.
        rows: sources of a batch.
        source: tokens of a source.
        target: tokens of a target in training.
        new: decoded tokens.
    """

    vocabulary: int
    hidden: int
    layers: int
    heads: int
    inner: int
    rows: int = 8
    source: int = 128
    target: int = 128
    new: int = 64


SIZES = {
    "bart-base": Sizes(50265, 768, 6, 12, 3072),
    "t5-small": Sizes(32128, 512, 6, 8, 2048),
}
SMOKE = Sizes(60, 16, 2, 2, 32, rows=2, source=8, target=6, new=5)


def torch_model(name: str, sizes: Sizes):
    """Returns transformers' model with random weights."""
    import torch
    import transformers

    torch.manual_seed(0)
    if name == "bart-base":
        config = transformers.BartConfig(
            vocab_size=sizes.vocabulary,
            d_model=sizes.hidden,
            encoder_layers=sizes.layers,
            decoder_layers=sizes.layers,
            encoder_attention_heads=sizes.heads,
            decoder_attention_heads=sizes.heads,
            encoder_ffn_dim=sizes.inner,
            decoder_ffn_dim=sizes.inner,
            attention_dropout=0.1,
            max_position_embeddings=1024,
        )
        return transformers.BartForConditionalGeneration(config)
    config = transformers.T5Config(
        vocab_size=sizes.vocabulary,
        d_model=sizes.hidden,
        d_kv=sizes.hidden // sizes.heads,
        num_layers=sizes.layers,
        num_heads=sizes.heads,
        d_ff=sizes.inner,
        decoder_start_token_id=0,
    )
    return transformers.T5ForConditionalGeneration(config)


def batch(sizes: Sizes) -> dict[str, np.ndarray]:
    """Returns a batch of a `Translator`, with random tokens and no padding."""
    rng = np.random.default_rng(0)

    def tokens(columns: int) -> np.ndarray:
        return rng.integers(SPECIALS, sizes.vocabulary, (sizes.rows, columns)).astype("int32")

    source, targets = tokens(sizes.source), tokens(sizes.target)
    shifted = np.pad(targets[:, :-1], ((0, 0), (1, 0)), constant_values=START)
    return {
        "encoder_token_ids": source,
        "encoder_padding_mask": np.ones_like(source),
        "decoder_token_ids": shifted,
        "decoder_padding_mask": np.ones_like(targets),
        "targets": targets,
        "weights": np.ones(targets.shape, "float32"),
    }


class Kbert:
    """kbert's contender."""

    def __init__(self, name: str, sizes: Sizes, folder: Path, dtype: str) -> None:
        self.sizes = sizes
        self.seq2seq = kbert.Seq2Seq.from_preset(folder, dtype=dtype)

    def translator(self) -> kbert.tasks.Translator:
        """Returns a task of the model, whose tokenizer only has the vocabulary's size."""
        names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
        names += [f"w{i}" for i in range(self.sizes.vocabulary - len(names))]
        tokenizer = kbert.WordPieceTokenizer(names)
        return kbert.tasks.Translator(self.seq2seq, tokenizer, label_smoothing=0.0)

    def step(self) -> tuple[Callable[[], float], float]:
        """Returns the training step, and the loss before it without dropout."""
        task, data = self.translator(), batch(self.sizes)
        task.compile(AdamW(RATE), clip_norm=1.0)
        losses, _ = task.loss_terms(data, training=False)
        total, weight = losses["lm_loss"]
        task.prepare({k: tf.TensorSpec(v.shape, v.dtype) for k, v in data.items()})
        function = task.make_train_function()
        batches = iter(tf.data.Dataset.from_tensors(data).repeat().prefetch(2))
        return lambda: float(function(batches)["loss"]), float(total / weight)

    def decoder(self, width: int, **compiled) -> Callable[[], np.ndarray]:
        """Returns a function that decodes; its result is (rows, new tokens)."""
        seq2seq, new = self.seq2seq, self.sizes.new
        method = Greedy() if width == 1 else Beam(width=width, length_penalty=0.0)

        @tf.function(autograph=False, **compiled)
        def run(ids: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
            logits, cache = seq2seq.prefill(ids, mask, new, tf.zeros_like(ids[:, 0]) + START)
            limits = {"max_new_tokens": new, "stop_ids": []}
            return decode(seq2seq.step, logits, cache, method=method, **limits).token_ids

        data = batch(self.sizes)
        inputs = [tf.constant(data[f"encoder_{x}"]) for x in ("token_ids", "padding_mask")]
        return lambda: run(*inputs).numpy()[:, 0]


class KerasHub:
    """KerasHub's contender."""

    def __init__(self, name: str, sizes: Sizes, folder: Path, dtype: str) -> None:
        import keras_hub

        self.sizes = sizes
        if name == "bart-base":
            # The converter reads a key that transformers no longer writes.
            path = folder / "config.json"
            config = json.loads(path.read_text(encoding="utf-8"))
            config["num_hidden_layers"] = sizes.layers
            path.write_text(json.dumps(config), encoding="utf-8")
            backbone = keras_hub.models.BartBackbone.from_preset(str(folder), dtype=dtype)
            self.model = keras_hub.models.BartSeq2SeqLM(backbone, preprocessor=None)
            return
        backbone = keras_hub.models.T5Backbone(
            vocabulary_size=sizes.vocabulary,
            num_layers=sizes.layers,
            num_heads=sizes.heads,
            hidden_dim=sizes.hidden,
            intermediate_dim=sizes.inner,
            use_gated_activation=False,
            dtype=dtype,
        )
        self.model = keras_hub.models.T5Seq2SeqLM(backbone, preprocessor=None)

    def step(self) -> tuple[Callable[[], float], float]:
        """Returns the training step, and the loss before it without dropout."""
        data = batch(self.sizes)
        optimizer = keras.optimizers.AdamW(RATE, weight_decay=0.01, global_clipnorm=1.0)
        optimizer.exclude_from_weight_decay(var_names=["bias", "gamma", "beta"])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        self.model.compile(
            optimizer=optimizer, loss=loss, weighted_metrics=[], sampler="greedy", jit_compile=False
        )
        x = {name: data[name] for name in data if name not in ("targets", "weights")}
        before = float(np.mean(loss(data["targets"], self.model(x, training=False))))
        rows = tf.data.Dataset.from_tensors((x, data["targets"], data["weights"])).repeat()
        function = self.model.make_train_function()
        function = function or self.model.train_function
        batches = iter(rows.prefetch(2))
        return lambda: float(function(batches)["loss"]), before

    def decoder(self, width: int) -> Callable[[], np.ndarray]:
        """Returns a function that decodes; its result is (rows, new tokens)."""
        import keras_hub

        sampler = "greedy" if width == 1 else keras_hub.samplers.BeamSampler(num_beams=width)
        self.model.compile(sampler=sampler)
        self.model.make_generate_function()
        data, new = batch(self.sizes), self.sizes.new
        targets = np.zeros((self.sizes.rows, 1 + new), "int32")
        targets[:, 0] = START
        inputs = {
            "encoder_token_ids": data["encoder_token_ids"],
            "encoder_padding_mask": data["encoder_padding_mask"],
            "decoder_token_ids": targets,
            "decoder_padding_mask": (targets > 0).astype("int32"),
        }
        # `compile` of another sampler forgets the function, so it is kept here.
        function = self.model.generate_function
        inputs = {name: tf.constant(x) for name, x in inputs.items()}

        def run() -> np.ndarray:
            return np.asarray(function(inputs, stop_token_ids=None)["decoder_token_ids"])[:, 1:]

        return run


class Transformers:
    """transformers' contender, in PyTorch."""

    def __init__(self, name: str, sizes: Sizes, folder: Path, dtype: str) -> None:
        self.sizes, self.dtype, self.model = sizes, dtype, torch_model(name, sizes)

    def step(self) -> tuple[Callable[[], float], float]:
        """Returns the training step, and the loss before it without dropout."""
        import torch

        data = {name: torch.tensor(x).long() for name, x in batch(self.sizes).items()}
        inputs = {
            "input_ids": data["encoder_token_ids"],
            "attention_mask": data["encoder_padding_mask"],
            "decoder_input_ids": data["decoder_token_ids"],
            "decoder_attention_mask": data["decoder_padding_mask"],
            "labels": data["targets"],
            "use_cache": False,
        }
        decayed = [p for p in self.model.parameters() if p.ndim > 1]
        plain = [p for p in self.model.parameters() if p.ndim == 1]
        groups = [{"params": decayed, "weight_decay": 0.01}, {"params": plain, "weight_decay": 0.0}]
        optimizer = torch.optim.AdamW(groups, lr=RATE)

        def forward() -> torch.Tensor:
            with torch.autocast("cpu", torch.bfloat16, enabled=self.dtype == "mixed_bfloat16"):
                return self.model(**inputs).loss

        def step() -> float:
            optimizer.zero_grad()
            loss = forward()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            optimizer.step()
            return loss.item()

        self.model.eval()
        with torch.no_grad():
            before = forward().item()
        self.model.train()
        return step, before

    def decoder(self, width: int) -> Callable[[], np.ndarray]:
        """Returns a function that decodes; its result is (rows, new tokens)."""
        import torch

        data, new = batch(self.sizes), self.sizes.new
        model = self.model.eval()
        for role in ("eos", "forced_eos", "forced_bos"):
            setattr(model.generation_config, f"{role}_token_id", None)
        inputs = {
            "input_ids": torch.tensor(data["encoder_token_ids"]).long(),
            "attention_mask": torch.tensor(data["encoder_padding_mask"]).long(),
        }
        settings = {"max_new_tokens": new, "do_sample": False, "use_cache": True}
        settings |= {"num_beams": width, "pad_token_id": 0, "decoder_start_token_id": START}

        def run() -> np.ndarray:
            with torch.no_grad():
                return model.generate(**inputs, **settings)[:, 1:].numpy()

        return run


CONTENDERS = {"kbert": Kbert, "KerasHub": KerasHub, "transformers (torch)": Transformers}


def measure(contenders: dict[str, Callable], rounds: int) -> dict[str, tuple[float, float, float]]:
    """Returns name -> medians of wall and processor seconds, and seconds of the first call."""
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in contenders}
    first = {}
    for turn in range(rounds + 1):
        for name, run in contenders.items():
            wall, cpu = time.perf_counter(), time.process_time()
            run()
            spent = (time.perf_counter() - wall, time.process_time() - cpu)
            if turn:
                times[name].append(spent)
            else:
                first[name] = spent[0]
    return {
        name: (*(statistics.median(column) for column in zip(*spent, strict=True)), first[name])
        for name, spent in times.items()
    }


def report(title: str, found: dict[str, tuple], tokens: int, differences: dict[str, str]) -> None:
    """Prints a table; `tokens` are those of one run, `differences` those from transformers'."""
    print(f"\n{title}")
    base_wall, base_cpu, _ = next(iter(found.values()))
    header = ("", "ms", "tokens/s", "wall ratio", "CPU ratio", "first, s", "against transformers")
    print_table(
        header,
        [
            (
                name,
                f"{wall * 1e3:.0f}",
                f"{tokens / wall:.0f}",
                f"{wall / base_wall:.2f}",
                f"{cpu / base_cpu:.2f}",
                f"{first:.1f}",
                differences.get(name, ""),
            )
            for name, (wall, cpu, first) in found.items()
        ],
    )


def has_own_weights(title: str, name: str) -> bool:
    """Returns whether a contender's weights are not those of transformers."""
    return title.startswith("t5") and name == "KerasHub"


def train(models: dict[str, object], title: str, sizes: Sizes, options) -> None:
    """Measures a training step of each contender."""
    steps, losses = {}, {}
    for name, contender in models.items():
        steps[name], losses[name] = contender.step()
    if options.profile and "kbert" in steps:
        print(f"\n{title}, kbert's step")
        profile(steps["kbert"])
    reference = losses.get("transformers (torch)")
    differences = {
        name: f"loss {loss:.4f}, {loss - reference:+.1e}"
        for name, loss in losses.items()
        if reference is not None and not has_own_weights(title, name)
    }
    tokens = sizes.rows * sizes.target
    report(f"{title}, training step", measure(steps, options.rounds), tokens, differences)


def decoding(models: dict[str, object], title: str, sizes: Sizes, options) -> None:
    """Measures greedy and beam search of each contender; kbert's also compiled by XLA."""
    for way, width in BEAMS.items():
        runs = {name: contender.decoder(width) for name, contender in models.items()}
        if "kbert" in models:
            runs = {"kbert, XLA": models["kbert"].decoder(width, jit_compile=True), **runs}
        if options.profile and "kbert" in runs:
            print(f"\n{title}, kbert's {way}")
            profile(runs["kbert"])
        found = measure(runs, options.rounds)
        texts = {name: run() for name, run in runs.items()}
        reference = texts.get("transformers (torch)")
        differences = {
            name: f"{np.mean(text == reference):.1%} of the tokens equal, "
            f"{len(np.unique(text))} distinct"
            for name, text in texts.items()
            if reference is not None and not has_own_weights(title, name)
        }
        report(f"{title}, {way}", found, sizes.rows * sizes.new, differences)


def main() -> None:
    flags = argparse.ArgumentParser(
        prog="python -m benchmarks.encoder_decoders", description=__doc__
    )
    parts = {"train": train, "decode": decoding}
    flags.add_argument("parts", nargs="*", metavar="part", help="train or decode (default: both)")
    flags.add_argument("--models", nargs="+", choices=list(SIZES), default=list(SIZES))
    dtypes = ("float32", "mixed_bfloat16")
    flags.add_argument("--dtypes", nargs="+", choices=dtypes, default=dtypes, help="of training")
    flags.add_argument("--rounds", type=int, default=5)
    flags.add_argument("--only", nargs="+", help="contenders whose name holds one of these")
    flags.add_argument("--smoke", action="store_true", help="tiny models, float32, one round")
    flags.add_argument("--profile", action="store_true", help="where kbert's time goes")
    options = flags.parse_args()
    unknown = sorted(set(options.parts) - set(parts))
    if unknown:
        flags.error(f"parts are {', '.join(parts)}. Received: {unknown}")
    if options.smoke:
        options.rounds, options.dtypes = 1, ["float32"]
    wanted = options.only or [""]
    for model in options.models:
        sizes = SMOKE if options.smoke else SIZES[model]
        for part in options.parts or parts:
            for dtype in options.dtypes if part == "train" else ("float32",):
                with tempfile.TemporaryDirectory() as folder:
                    torch_model(model, sizes).save_pretrained(folder)
                    keras.utils.set_random_seed(0)
                    contenders = {
                        name: cls(model, sizes, Path(folder), dtype)
                        for name, cls in CONTENDERS.items()
                        if any(word in name for word in wanted)
                    }
                title = f"{model}, {sizes.rows} x {sizes.source}, {dtype}"
                parts[part](contenders, title, sizes, options)


if __name__ == "__main__":
    main()
