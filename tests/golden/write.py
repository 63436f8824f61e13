r"""How the golden files were made: by the version whose name their folder has, and by no later one.

Everything that kbert writes and reads again lies there as that version wrote it, with what that
version then read, answered and went on to; `test_golden.py` asks the present version for the same.
To add the files of a version, check it out and run this file with it:

  PYTHONPATH=CHECKOUT python tests/golden/write.py /tmp/golden && cp -r /tmp/golden tests/golden/vX

This file writes those of 0.2.0 and 1.0.0. Those of 0.1.0 were written by it as it stood in f5ddad7,
the commit that added them. 1.0.0 wrote most files to the same bytes as 0.2.0, and these are not
stored twice: `test_golden.py` lays its files over those of 0.2.0.

Paths within are relative to the folder, which the programs are started in. Only the plan of a
corpus names its source by the whole path, so OUTPUT is one that tells nothing: /tmp/golden.

    presets/NAME/         a preset of every task, model and tokenizer, and of what is done to
                          trained ones; presets.json what they answer
    encoders/NAME/        of each class and part of encoders; encoders.json its vectors
    encoder.keras         what Keras writes of one
    adapters/NAME/        of each kind; adapters.json, adapters_of_encoders.json their bases and
                          answers, two_adapters.json those of a preset with two, by which runs
    text.txt, shards/     a corpus, word_shards/ one of words; batches.json what comes of them
    pretrain/NAME/        runs of kbert-pretrain, stopped, one of each objective, and of
                          kbert-distill on text; pretrain.json their flags, all their steps, and
                          the evaluations
    fit/NAME/             the same of `fit(model_dir=…)`, killed; multi_task.json of two tasks
    finetune/NAME/        the same of kbert-finetune, and of kbert-distill on a table
    teacher/              a teacher's outputs, and what a student learns from them (teacher.json)
    features.*, tokens.*  half a file of features
    answers/              half of the answers of kbert-predict, -embed, -fill-mask, …
    augmented/            half of the folder of kbert-augment
    index/                of vectors; index.json what is found
    exports/NAME.zip      a task exported to each runtime; exports.json its answers
"""

import contextlib
import json
import os
import shutil
import signal
import sys
import zipfile
from pathlib import Path
from unittest import mock

import keras
import numpy as np
import tensorflow as tf
from absl import flags
from absl.testing import flagsaver
from sentencepiece.sentencepiece_model_pb2 import ModelProto

import kbert
from kbert import tasks
from kbert.core import registry
from kbert.distillation import Distiller, HiddenStates, SoftTargets
from kbert.distillation.augmentation import folder as augmented
from kbert.experiments import answer_file
from kbert.export import load_exported
from kbert.extraction import write as features
from kbert.models import ElmoEncoder, PrefixSeq2Seq
from kbert.tokenizers import SPECIAL_TOKENS, train_tokenizer, train_unigram
from kbert.training.run.monitor import Monitor
from pipelines import (
    augment,
    distill,
    embed,
    fill_mask,
    finetune,
    generate,
    predict,
    pretrain,
    translate,
)

NOUNS = ("fox", "dog", "cat", "pen", "moon", "tree", "river", "house", "man", "king", "sun")
WORDS = (
    *("the", "a", "red", "blue", "green", "old", "big", "small", "jumps", "runs", "sees", "over"),
    *("under", "and", "of", "is", *NOUNS),
)
VOCABULARY = [*SPECIAL_TOKENS, ".", ",", "##s", "##ing", *WORDS]
TEXTS = ["the red fox jumps over the old river .", "a man sees kings and the small moon , quoting"]
LONG = "the red fox jumps over the old river and the big dog runs under a tree of the king ."
SIZES = {"hidden_size": 8, "num_heads": 2, "intermediate_size": 12, "max_positions": 40}
NARROW = {**SIZES, "hidden_size": 4, "intermediate_size": 8}  # of the large vocabularies
# What an encoder's config can say, by what it is of.
KINDS = {
    "modern": {  # ModernBERT
        "positions": "rotary", "rotary_base": 160_000.0, "local_rotary_base": 10_000.0,
        "attention_pattern": ("global", 4), "num_segments": 0, "feed_forward": "gated",
        "norm": "layer_no_bias", "block": "pre_norm_except_first", "use_bias": False,
        "pooler_norm": True, "token_transform": True, "pooling": "mean", "num_layers": 2,
    },
    "alibi": {  # MosaicBERT
        "positions": "alibi", "attention_pattern": (4, "global"), "feed_forward": "gated",
        "bias_exceptions": ("gate",), "num_layers": 2,
    },
    "grouped": {  # EuroBERT
        "positions": "rotary", "num_segments": 0, "num_key_value_heads": 1,
        "feed_forward": "gated", "norm": "rms", "block": "pre_norm", "embedding_norm": False,
        "use_bias": False, "bias_exceptions": ("heads",), "pooling": "late", "output": "untied",
    },
    "padding_by_id": {  # RoBERTa
        "padding_id": 10, "head_activation": "relu", "bias_exceptions": ("attention",),
    },
    "sines": {"positions": "sinusoidal", "embedding_size": 4, "use_bias": False},
    "groups": {"num_layer_groups": 1, "num_layers": 2, "attention_pattern": ("global", 4)},
    "disentangled": {  # DeBERTa
        "part": {"name": "disentangled", "position_buckets": 8, "max_distance": 10},
        "positions": "none", "num_segments": 0,
    },
    "disentangled_first": {  # its first version
        "part": {"name": "disentangled", "position_buckets": 0, "max_distance": 10,
                 "shared_projections": False, "table_norm": False},
        "positions": "none", "num_segments": 0,
    },
    "convolution": {  # ConvBERT
        "part": {"name": "dynamic_convolution", "kernel_size": 5, "num_groups": 2},
        "num_heads": 4, "activation": "gelu", "embedding_size": 4,
    },
    "relative_bias": {"part": {"name": "relative_bias"}, "num_segments": 0},  # MPNet
    "global_tokens": {  # Longformer
        "part": {"name": "global_tokens"}, "attention_pattern": (4,), "num_segments": 0,
    },
    "bottleneck": {  # MobileBERT
        "part": {"name": "bottleneck", "width": 4, "num_feed_forwards": 2},
        "embedding_size": 4, "pooler_activation": "identity",
    },
    "task_embeddings": {"part": {"name": "task_embeddings", "num_tasks": 2, "task": 1}},  # ERNIE
    "xlnet": {"kind": "xlnet", "clamp_length": 6},
    "transformer-xl": {"kind": "transformer_xl", "cutoffs": (9, 14), "divisor": 2},
    "universal": {"kind": "universal_transformer", "num_layers": 3},
    "reformer": {
        "kind": "reformer", "head_size": 4, "num_layers": 2, "num_buckets": 4, "hash_seed": 1,
        "local_chunk_length": 4, "lsh_chunk_length": 4, "positions": "axial",
        "axial_shape": (5, 8), "axial_sizes": (1, 3),
    },
}  # fmt: skip
ELMO = {
    "character_size": 4,
    "filters": ((1, 4), (2, 4)),
    "num_highway": 1,
    "max_characters": 10,
    "lstm_size": 6,
    "projection_size": 4,
}


class Killed(Exception):
    """Stands for the end of a process."""


def randomise(layer, seed):
    """All weights of a layer, or those of a list."""
    rng = np.random.default_rng(seed)
    for weight in getattr(layer, "weights", layer):
        if weight.dtype == "float32":
            centre = 1.0 if weight.name == "gamma" else 0.0
            weight.assign(rng.normal(centre, 0.3, tuple(weight.shape)).astype("float32"))
    return layer


def make_text(documents, seed, sentences=6):
    """Documents of sentences of the words."""
    rng = np.random.default_rng(seed)

    def sentence():
        return " ".join(rng.choice(WORDS, rng.integers(4, 10))) + " ."

    return "\n\n".join("\n".join(sentence() for _ in range(sentences)) for _ in range(documents))


def plain(value):
    """What JSON can hold; numbers to six digits behind the point."""
    if hasattr(value, "to_list"):
        value = value.to_list()
    if hasattr(value, "numpy"):
        value = value.numpy()
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, dict):
        return {name: plain(x) for name, x in value.items()}
    if isinstance(value, list | tuple):
        return [plain(x) for x in value]
    return round(value, 6) if isinstance(value, float) else value


def write_json(path, content):
    Path(path).write_text(json.dumps(content, ensure_ascii=False) + "\n", encoding="utf-8")


def add_json(path, name, content):
    """An entry more, a line each."""
    before = json.loads(Path(path).read_text(encoding="utf-8")) if Path(path).exists() else {}
    entries = {**before, name: content}.items()
    text = ",\n".join(f"{json.dumps(k)}: {json.dumps(v, ensure_ascii=False)}" for k, v in entries)
    Path(path).write_text(f"{{\n{text}\n}}\n", encoding="utf-8")


def write_zip(path, files):
    """Name -> bytes, packed, of a time that tells nothing."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(files):
            archive.writestr(zipfile.ZipInfo(name), files[name], zipfile.ZIP_DEFLATED)


def shortened(value):
    """A number to nine digits, more than a float32 has."""
    return float(f"{float(value):.9g}")


def lines(path):
    content = Path(path).read_text(encoding="utf-8")
    return [json.loads(line, parse_float=shortened) for line in content.splitlines()]


def write_text(path, content):
    """Of a time that tells nothing: a corpus knows its sources by it."""
    Path(path).write_text(content, encoding="utf-8")
    os.utime(path, (1_700_000_000, 1_700_000_000))


def write_preset(name, kind, model, *asks):
    """A model in a folder, and what it answers: `asks` are (method, arguments, options)."""
    model.save_to_preset(Path("presets", name))
    tokenizer = getattr(model, "tokenizer", None)
    ids = None if tokenizer is None else plain(tokenizer.encode(TEXTS))
    content = {"load": kind, "asks": asked(model, asks), "texts": TEXTS, "token_ids": ids}
    add_json("presets.json", name, content)


def asked(model, asks):
    return [
        {
            "method": method,
            "arguments": arguments,
            "options": options,
            "answers": plain(getattr(model, method)(*arguments, **options)),
        }
        for method, arguments, options in asks
    ]


def ask(*arguments, method="predict", **options):
    return method, list(arguments), options


def config_of(kind="encoder", **fields):
    return registry.get("config", kind)(**fields)


def encoder(tokenizer, seed, **changes):
    fields = {**SIZES, "num_layers": 1, "vocabulary_size": tokenizer.vocabulary_size, **changes}
    return randomise(kbert.Encoder(config_of(**fields)), seed)


def decoder(tokenizer, seed, **changes):
    fields = {**SIZES, "num_layers": 1, "vocabulary_size": tokenizer.vocabulary_size, **changes}
    return randomise(kbert.Decoder(kbert.DecoderConfig(**fields)), seed)


def make_tokenizers():
    corpus = make_text(20, seed=1).split("\n")
    letters = "abcdefghijklmnopqrstuvwxyz."
    model = ModelProto.FromString(train_unigram(corpus, 60, lowercase=True))
    # The table of Unicode's normalisation is 240 kB, and nothing of kbert's.
    model.normalizer_spec.precompiled_charsmap = b""
    model.normalizer_spec.name = "identity"
    return {
        "wordpiece": kbert.WordPieceTokenizer(VOCABULARY),
        "bpe": train_tokenizer(corpus, 270, kind="bpe"),
        "gpt": kbert.tokenizers.GptTokenizer(
            ["<unk>", "</s>", *letters, *(f"{x}</w>" for x in letters), "th", "the</w>"],
            ["t h", "th e</w>"],
            special_tokens={"unk": "<unk>", "sep": "</s>"},
        ),
        "unigram": kbert.UnigramTokenizer(model.SerializeToString(), lowercase=True),
        "words": train_tokenizer(corpus, 24, kind="words"),
    }


def write_presets(tokenizers):
    """The tasks that are trained on text, those that are fine-tuned, and those that write."""
    masked = ["the red [MASK] jumps over the [MASK] .", "a [MASK] sees the moon ."]
    pairs = [["the red fox .", "it is old ."], [TEXTS[0], "the king sees a dog ."]]
    bare = {"pooler_activation": None}
    modern = {**KINDS["modern"], "max_positions": 40}
    for number, (name, kind, tokenizer, fields, options, asks) in enumerate((
        ("pretraining", tasks.Pretraining, "wordpiece", {}, {},
         [ask(masked, top_k=3), ask(pairs, method="predict_next_sentence")]),
        ("sentence_order", tasks.Pretraining, "unigram",  # ALBERT's
         {"embedding_size": 4, "num_layers": 2, "num_layer_groups": 1}, {"sentence_order": True},
         [ask(pairs, method="predict_sentence_order")]),
        ("span_boundary", tasks.Pretraining, "wordpiece", NARROW,  # it has 200 vectors of positions
         {"next_sentence": False, "span_boundary": True}, [ask(masked, top_k=3)]),
        ("without_masks", tasks.Pretraining, "wordpiece", {}, {"masked_lm": False},
         [ask(pairs, method="predict_next_sentence")]),
        ("pretraining_modern", tasks.Pretraining, "wordpiece", modern, {"next_sentence": False},
         [ask(masked, top_k=3)]),
        ("pretraining_llama", tasks.Pretraining, "wordpiece", KINDS["grouped"],
         {"next_sentence": False}, [ask(masked, top_k=3)]),
        ("pretraining_mobile", tasks.Pretraining, "wordpiece", KINDS["bottleneck"], {},
         [ask(masked, top_k=3)]),
        ("replaced_tokens", tasks.ReplacedTokenDetection, "wordpiece", bare, {}, [ask(TEXTS)]),
        ("replaced_tokens_disentangled", tasks.ReplacedTokenDetection, "wordpiece",
         {**KINDS["disentangled"], **bare}, {"embedding_sharing": "gradient_disentangled"},
         [ask(TEXTS)]),
        ("masked_and_causal", tasks.MaskedAndCausal, "wordpiece",
         {"num_segments": 0, "positions": "rotary", **bare}, {"z_loss": 1e-4},
         [ask(masked, top_k=3), ask(["the red"], method="write", max_new_tokens=3)]),
        ("memory_lm", tasks.MemoryLM, "words", KINDS["transformer-xl"],
         {"memory_length": 6, "batch_size": 2}, [ask(TEXTS)]),
        ("permutation_lm", tasks.PermutationLM, "wordpiece", {**KINDS["xlnet"], **bare},
         {"memory_length": 6, "batch_size": 2}, [ask(masked, top_k=3)]),
        ("classifier", tasks.TextClassifier, "wordpiece", {"num_layers": 2},
         {"labels": ["ham", "spam"], "max_length": 32},
         [ask(TEXTS), ask({"first": TEXTS, "second": TEXTS[::-1]})]),
        ("classifier_of_windows", tasks.TextClassifier, "wordpiece", {},
         {"labels": ["a", "b", "c"], "max_length": 8, "doc_stride": 3, "pooling": "max"},
         [ask([LONG, *TEXTS])]),
        ("classifier_of_several_labels", tasks.TextClassifier, "wordpiece", {},
         {"labels": ["a", "b", "c"], "multi_label": True,
          "threshold": {"a": 0.3, "b": 0.5, "c": 0.8}, "dropout": 0.2},
         [ask([LONG, *TEXTS])]),
        ("classifier_on_xlnet", tasks.TextClassifier, "unigram", KINDS["xlnet"],
         {"labels": 2}, [ask(TEXTS)]),
        ("regressor", tasks.TextRegressor, "unigram", {}, {"max_length": 10, "doc_stride": 4},
         [ask([LONG, *TEXTS])]),
        ("token_classifier", tasks.TokenClassifier, "bpe",  # RoBERTa's
         {**NARROW, "num_segments": 0, **bare},
         {"labels": ["O", "B-x", "I-x"], "max_length": 10, "doc_stride": 4},
         [ask([LONG, *TEXTS])]),
        ("question_answerer", tasks.QuestionAnswerer, "wordpiece", {},
         {"max_length": 16, "doc_stride": 4, "max_question_length": 4, "max_answer_length": 3,
          "n_best": 5, "null_threshold": 0.5},
         [ask({"question": ["who jumps ?", "what"], "context": [LONG, TEXTS[1]]})]),
        ("question_answerer_on_longformer", tasks.QuestionAnswerer, "wordpiece",
         KINDS["global_tokens"], {"max_length": 24, "n_best": 2},
         [ask({"question": ["who jumps ?", "what"], "context": [LONG, TEXTS[1]]})]),
        ("multiple_choice", tasks.MultipleChoice, "wordpiece", {}, {"max_length": 24},
         [ask({"context": TEXTS, "choices": [["the fox", "a dog .", "a"], ["moon", LONG]]})]),
        ("embedder", tasks.TextEmbedder, "wordpiece", bare,
         {"max_length": 16, "token_pooling": "weighted", "projection": 4,
          "projection_activation": "tanh", "query_prompt": "a fox : ", "matryoshka": [2],
          "document_prompt": "the river : ", "objective": "symmetric_ranking"},
         [ask(TEXTS), ask(TEXTS, prompt="query"), ask({"first": TEXTS, "second": TEXTS[::-1]})]),
        ("denoiser", tasks.TextDenoiser, "wordpiece", {"num_layers": 2, **bare},
         {"decoder_layers": 1, "deletion_rate": 0.5}, [ask(TEXTS)]),
    )):  # fmt: skip
        tokenizer = tokenizers[tokenizer]
        task = kind(encoder(tokenizer, number, **fields), tokenizer, **options)
        write_preset(name, "Task", randomise(task, number), *asks)


def write_generators(tokenizers):
    """Decoders, encoder-decoders and ELMo, and tasks on them."""
    wordpiece, bpe, words = (tokenizers[kind] for kind in ("wordpiece", "bpe", "words"))
    generated = {"max_new_tokens": 4, "verbose": 0}
    task = tasks.CausalLM(decoder(bpe, 40, **NARROW), bpe)
    write_preset(
        *("causal_lm", "Task", task),
        ask(["the red", "a king"], **generated, return_scores=True),
        ask(TEXTS, method="score"),
    )
    options = {"labels": ["x", "y"], "auxiliary_lm_weight": 0.5, "both_orders": True}
    task = tasks.TextClassifier.from_preset("presets/causal_lm", new_head=True, **options)
    write_preset(
        *("classifier_on_decoder", "Task", randomise(task, 41)),
        ask(TEXTS),
        ask({"first": TEXTS, "second": TEXTS[::-1]}),
    )
    gpt = {"block": "post_norm", "positions": "rotary", "attention_pattern": ("global", 4)}
    task = tasks.CausalLM(decoder(tokenizers["gpt"], 42, **NARROW, num_layers=2, **gpt),
                          tokenizers["gpt"])  # fmt: skip
    write_preset("causal_lm_gpt", "Task", task, ask(["the red", "a king"], **generated))

    fields = {**SIZES, "num_layers": 1, "vocabulary_size": wordpiece.vocabulary_size}
    bart = {"positions": "learned", "embeddings": "normalised", "block": "pre_norm",
            "num_decoder_layers": 2, "activation": "gelu", "initializer_range": 0.02}  # fmt: skip
    for name, changes in (("translator", {}), ("translator_bart", bart)):
        seq2seq = randomise(kbert.Seq2Seq(kbert.Seq2SeqConfig(**{**fields, **changes})), 43)
        translator = tasks.Translator(seq2seq, wordpiece, label_smoothing=0.2)
        write_preset(name, "Task", translator, ask(TEXTS, **generated, return_scores=True))
    prefix = PrefixSeq2Seq(encoder(wordpiece, 44))
    write_preset(
        *("prefix_translator", "Translator", tasks.Translator(prefix, wordpiece)),
        ask(TEXTS, **generated, return_scores=True),
    )

    elmo = randomise(kbert.Elmo(kbert.ElmoConfig(**ELMO)), 45)
    characters = kbert.CharacterTokenizer(ELMO["max_characters"])
    task = tasks.TokenClassifier(ElmoEncoder(elmo), characters, ["X", "Y"])
    write_preset("token_classifier_on_elmo", "Task", randomise(task, 46), ask(TEXTS))
    config = kbert.ElmoConfig(**ELMO, vocabulary_size=words.vocabulary_size)
    elmo = randomise(kbert.Elmo(config, tokenizer=words), 47)
    write_preset(
        *("elmo", "Elmo", elmo),
        ask(TEXTS, method="embed"),
        ask("the red", 3, method="predict_next"),
    )


def write_encoders(tokenizers):
    """Of each class of encoders, and each part: its vectors."""
    for number, (name, fields) in enumerate({"bert": {}, **KINDS}.items()):
        model = encoder(tokenizers["wordpiece"], 60 + number, **fields)
        model.save_to_preset(f"encoders/{name}")
        add_json("encoders.json", f"encoders/{name}", vectors(model))
    # What others are made of: adapters, features.
    bare = encoder(tokenizers["wordpiece"], 27, num_layers=2)
    bare.save_to_preset("presets/encoder")
    tokenizers["wordpiece"].save("presets/encoder")
    add_json("encoders.json", "presets/encoder", vectors(bare))
    kbert.Encoder.from_preset("encoders/bert").save("whole.keras")
    with zipfile.ZipFile("whole.keras") as archive:  # packed, and without the date
        files = {name: archive.read(name) for name in archive.namelist()}
    os.remove("whole.keras")
    about = {**json.loads(files["metadata.json"]), "date_saved": "2020-01-01@00:00:00"}
    write_zip("encoder.keras", {**files, "metadata.json": json.dumps(about).encode()})


def vectors(model):
    """What an encoder is given, and gives."""
    rng = np.random.default_rng(9)
    ids = rng.integers(9, model.config.vocabulary_size, (2, 12))
    inputs = {"token_ids": ids, "padding_mask": np.array([[1] * 12, [1] * 8 + [0] * 4])}
    if model.config.num_segments:
        inputs["segment_ids"] = np.array([[0] * 5 + [1] * 7] * 2)
    if (model.config.part or {}).get("name") == "global_tokens":
        inputs["global_positions"] = np.array([[0, 3], [0, -1]])
    found = model({name: x.astype("int32") for name, x in inputs.items()})
    outputs = {x: found[x] for x in ("sequence", "pooled") if x in found}
    return plain({"inputs": inputs, "outputs": outputs})


def with_adapter(model, kind, seed, **options):
    """Weights of adapters begin with zeros, by which none could be told from another."""
    before = {id(weight) for weight in model.weights}
    kbert.edit.adapters.add(model, kind, **options)
    randomise([x for x in model.weights if id(x) not in before], seed)
    return model


def write_adapters(tokenizers):
    """Folders of adapters on a base, and presets that have theirs inside."""
    wordpiece = tokenizers["wordpiece"]
    every = ("query", "key", "value", "attention_output", "intermediate", "output")
    written = []
    for number, (name, base, kind, task, options, adapter) in enumerate((
        ("lora", "encoder", "lora", tasks.TextClassifier, {"labels": ["x", "y"]}, {"rank": 2}),
        ("lora_pooler", "encoder", "lora", tasks.TextRegressor, {"max_length": 20},
         {"rank": 1, "alpha": 3.0, "dropout": 0.1, "targets": every, "pooler": True}),
        ("houlsby", "encoder", "houlsby", tasks.TextClassifier, {"labels": ["x", "y"]},
         {"size": 3, "activation": "relu"}),
        ("pfeiffer", "encoder", "pfeiffer", tasks.TokenClassifier, {"labels": ["X", "Y"]},
         {"size": 2}),
        ("bitfit", "encoder", "bitfit", tasks.TextClassifier, {"labels": ["x", "y"]}, {}),
        ("prefix", "encoder", "prefix", tasks.TextClassifier, {"labels": ["x", "y"]},
         {"length": 3}),
        ("pal", "encoder", "pal", tasks.TextClassifier, {"labels": ["x", "y"]}, {"size": 4}),
        ("decoder", "causal_lm", "lora", tasks.CausalLM, {}, {"rank": 2}),
        ("input_tokens", "causal_lm", "houlsby", tasks.TextClassifier, {"labels": ["x", "y"]},
         {"size": 2}),
    )):  # fmt: skip
        new = {"new_head": True} if task.has_head else {}
        model = task.from_preset(f"presets/{base}", **new, **options)
        with_adapter(randomise_heads(model, number), kind, 80 + number, name=name, **adapter)
        kbert.edit.adapters.save(model, f"adapters/{name}")
        method = "score" if task is tasks.CausalLM else "predict"
        written.append({
            "folder": f"adapters/{name}", "base": f"presets/{base}",
            "asks": asked(model, [ask(TEXTS, method=method)]),
        })  # fmt: skip
    write_json("adapters.json", written)

    written = []
    for number, (base, kind, adapter) in enumerate((
        ("modern", "lora", {"rank": 2}), ("disentangled", "lora", {"rank": 2}),
        ("convolution", "lora", {"rank": 1}), ("relative_bias", "lora", {"rank": 1}),
        ("global_tokens", "lora", {"rank": 1}), ("groups", "houlsby", {"size": 2}),
        ("grouped", "pfeiffer", {"size": 2}), ("alibi", "bitfit", {}),
    )):  # fmt: skip
        model = kbert.Encoder.from_preset(f"encoders/{base}")
        with_adapter(model, kind, 100 + number, **adapter)
        folder = f"adapters/{kind}_on_{base}"
        kbert.edit.adapters.save(model, folder)
        written.append({"folder": folder, "base": f"encoders/{base}", **vectors(model)})
    write_json("adapters_of_encoders.json", written)

    task = tasks.TextClassifier(encoder(wordpiece, 110), wordpiece, ["x", "y"])
    randomise(task, 110)
    with_adapter(task, "houlsby", 111, name="first", size=2)
    with_adapter(task, "lora", 112, name="second", rank=1)
    found = {}
    kbert.edit.adapters.activate(task, None)  # it follows its encoder
    for name in (None, "first", "second"):
        kbert.edit.adapters.activate(task.encoder, name)
        found[name or ""] = plain(task.predict(TEXTS))
    kbert.edit.adapters.activate(task, "first")
    write_preset("two_adapters", "Task", task, ask(TEXTS))
    write_json("two_adapters.json", found)


def randomise_heads(task, seed):
    own = {id(weight) for weight in getattr(task, "encoder", task).weights}
    randomise([x for x in task.weights if id(x) not in own], seed)
    return task


def write_edits(tokenizers):
    """What was done to a trained encoder: presets of what came of it."""
    wordpiece = tokenizers["wordpiece"]
    texts = [text for text in make_text(2, seed=8).split("\n") if text][:12]
    labels = ["ham", "spam"] * 6
    how = {"epochs": 2, "batch_size": 4, "learning_rate": 1e-2, "seed": 1, "verbose": 0}

    def task(seed, **fields):
        options = {"labels": ["ham", "spam"], "max_length": 32}
        model = encoder(wordpiece, seed, **{"num_layers": 2, **fields})
        return randomise(tasks.TextClassifier(model, wordpiece, **options), seed)

    whole = task(120)
    heads = kbert.edit.pruning.prune_heads(whole, {0: [1]})
    write_preset("pruned_heads", "Task", heads, ask(TEXTS))
    both = kbert.edit.pruning.prune_neurons(heads, {0: [1, 2, 5], 1: [0]})
    write_preset("pruned_neurons", "Task", both, ask(TEXTS))
    narrow = kbert.edit.pruning.prune_neurons(task(121, **KINDS["modern"]), {0: [1, 2], 1: [0, 7]})
    write_preset("pruned_alike", "Task", narrow, ask(TEXTS))
    write_preset(
        "bottom_layer", "Task", kbert.edit.pruning.keep_layers(whole, "bottom", 1), ask(TEXTS)
    )
    small = kbert.edit.pruning.prune_vocabulary(whole, texts=TEXTS, keep=("moon",))
    small = small[0] if isinstance(small, tuple) else small
    write_preset("pruned_vocabulary", "Task", small, ask(TEXTS))

    sparse = task(122)
    drop = [kbert.edit.pruning.LayerDrop(0.3), kbert.edit.pruning.MagnitudePruning(0.5, end_step=4)]
    sparse.fit(texts, labels, **how, callbacks=drop)
    write_preset("zeros", "Task", sparse, ask(TEXTS))
    scored = kbert.edit.pruning.with_movement(task(123))
    movement = kbert.edit.pruning.MovementPruning(0.5, begin_step=1, end_step=5)
    scored.fit(texts, labels, **how, callbacks=[movement])
    write_preset("movement", "Task", scored, ask(TEXTS))
    write_preset("moved", "Task", kbert.edit.pruning.apply_movement(scored), ask(TEXTS))
    aware = kbert.edit.quantization.quantization_aware(task(124))
    aware.fit(texts, labels, **how)
    write_preset("quantization_aware", "Task", aware, ask(TEXTS))
    write_preset("rounded", "Task", kbert.edit.quantization.rounded(aware), ask(TEXTS))

    embedder = tasks.TextEmbedder.from_preset("presets/embedder")
    static = kbert.distillation.distill_static(embedder, 3, max_length=30, verbose=0)
    write_preset("static", "Task", static, ask(TEXTS))


def write_shards(tokenizers):
    write_text("text.txt", make_text(30, seed=2))
    kbert.data.prepare_corpus("text.txt", "shards", tokenizers["wordpiece"], held_out_share=0.2)
    kbert.data.prepare_corpus("text.txt", "word_shards", tokenizers["words"], held_out_share=0.2)
    written = []
    for function, folder, options in (
        ("pretraining_dataset", "shards", {"masking": "whole_word", "sequence_length": 16}),
        ("pretraining_dataset", "shards", {"masking": "span", "segments": "single",
                                           "sequence_length": 12, "split": "held_out"}),
        ("pretraining_dataset", "shards", {"masking": "ngram", "segments": "halves",
                                           "sequence_length": 16, "static_masks": 2}),
        ("causal_dataset", "shards", {"sequence_length": 12}),
        ("language_model_dataset", "word_shards", {"sequence_length": 6, "max_characters": 10}),
    ):  # fmt: skip
        options = {"batch_size": 4, "seed": 3, **options}
        dataset = getattr(kbert.data, function)(folder, kbert.load_tokenizer(folder), **options)
        batches = [plain(batch) for batch in dataset.take(3).as_numpy_iterator()]
        written.append(
            {"function": function, "folder": folder, "options": options, "batches": batches[::2]}
        )
    write_json("batches.json", written)


@contextlib.contextmanager
def terminated(step):
    """SIGTERM before the update number `step` of a run of kbert-pretrain is counted."""
    usual = Monitor.on_train_batch_end

    def end(self, batch, logs=None):
        if self.step + 1 == step:
            signal.raise_signal(signal.SIGTERM)
        usual(self, batch, logs)

    with mock.patch.object(Monitor, "on_train_batch_end", end):
        yield


@contextlib.contextmanager
def killed(step, time=1):
    """The end once the checkpoint of `step` is written, the first time or a later one."""
    usual, times = Monitor.on_train_batch_end, []

    def end(self, batch, logs=None):
        usual(self, batch, logs)
        if self.step == step:
            times.append(step)
            if len(times) == time:
                raise Killed  # the thread that writes the checkpoint ends its work

    with mock.patch.object(Monitor, "on_train_batch_end", end), contextlib.suppress(Killed):
        yield
        raise AssertionError("it was not killed")


def name_of(program):
    return program.__name__.split(".")[-1]


def call(program, *arguments):
    """A program as it is started, in this process."""
    with flagsaver.flagsaver(), mock.patch.object(sys, "argv", [program.__name__]):
        before = set(flags.FLAGS)
        program.define_flags()
        for name in set(flags.FLAGS) - before:
            flags.FLAGS.register_key_flag_for_module(sys.argv[0], flags.FLAGS[name])
        program.main(flags.FLAGS([program.__name__, *arguments]))


@contextlib.contextmanager
def gone_on_with(folder):
    """What is there is kept; then this version resumes, and what comes of that is checked."""
    kept = Path(f"{folder}.kept")
    shutil.copytree(folder, kept)
    yield
    shutil.rmtree(folder)
    kept.rename(folder)


def write_pretrain():
    bare = {**SIZES, "num_layers": 1, "vocabulary_size": 9, "pooler_activation": None}
    xl = {"kind": "transformer_xl", "cutoffs": (5,), "divisor": 2}
    for name, config in (
        ("elmo", kbert.ElmoConfig(**ELMO)),
        ("gpt", kbert.DecoderConfig(**SIZES, num_layers=1, vocabulary_size=9, block="post_norm")),
        ("seq2seq", kbert.Seq2SeqConfig(**NARROW, num_layers=1, vocabulary_size=9)),
        ("xlnet", config_of(**{**bare, "kind": "xlnet"})),
        ("transformer_xl", config_of(**{**bare, **xl})),
        ("modern", config_of(**{**bare, **KINDS["modern"], "num_layers": 1})),
        ("gpt_bert", config_of(**{**bare, "num_segments": 0, "positions": "rotary"})),
        ("albert", config_of(**{**bare, "embedding_size": 4, "pooler_activation": "tanh"})),
    ):
        kind = {"kind": "xlnet"} if name == "xlnet" else {}
        write_json(f"{name}.json", {**kind, **config.to_dict()})
    rng = np.random.default_rng(3)
    sources = [" ".join(rng.choice(WORDS, rng.integers(2, 7))) for _ in range(32)]
    write_text("source.txt", "\n".join(sources) + "\n")
    write_text("target.txt", "\n".join(text[::-1] for text in sources) + "\n")
    sizes = [f"--set={k}={v}" for k, v in {**SIZES, "num_layers": 1}.items()]
    bert = ["--data_dir=shards", *sizes, "--warmup_steps=2", "--learning_rate=1e-2"]
    rows = ["--batch_size=4", "--sequence_length=12"]
    on_shards = ["--data_dir=shards", *rows, "--warmup_steps=2"]
    written = []
    for name, own in (
        ("bert", [*bert, "--batch_size=4", "--phases=12:0.5,20:0.5"]),
        ("electra", [*bert, *rows, "--recipe=electra", "--generator_share=0.5",
                     "--model=google/electra-small-discriminator",
                     "--set=embedding_size=8"]),
        ("albert", [*on_shards, "--recipe=albert", "--model=albert.json"]),
        ("spanbert", [*on_shards, "--recipe=spanbert", *[f"--set={k}={v}" for k, v in
                      {**NARROW, "num_layers": 1}.items()]]),
        ("modernbert", [*on_shards, "--recipe=modernbert", "--model=modern.json",
                        "--micro_batches=2"]),
        ("xlnet", [*on_shards, "--recipe=xlnet", "--model=xlnet.json", "--memory_length=8"]),
        ("transformer_xl", ["--data_dir=word_shards", *rows, "--recipe=transformer-xl",
                            "--model=transformer_xl.json", "--memory_length=8",
                            "--warmup_steps=2", "--set=dropout=0.1"]),
        ("gpt_bert", [*on_shards, "--recipe=gpt-bert", "--model=gpt_bert.json",
                      "--set=dropout=0.1", "--causal_share=0.25"]),
        ("elmo", ["--data_dir=word_shards", "--recipe=elmo", "--model=elmo.json",
                  "--batch_size=4", "--sequence_length=8", "--vocabulary_size=20",
                  "--negatives=4"]),
        ("gpt", ["--data_dir=shards", "--recipe=gpt", "--model=gpt.json", *rows,
                 "--warmup_steps=1", "--decay=constant"]),
        ("translation", ["--source=source.txt", "--target=target.txt", "--dev_source=source.txt",
                         "--dev_target=target.txt", "--recipe=transformer", "--model=seq2seq.json",
                         "--vocabulary_size=264", "--batch_tokens=96", "--beam_width=1",
                         "--average_checkpoints=1", "--warmup_steps=2", "--learning_rate=1e-2"]),
        ("distilled", [*on_shards, "--recipe=distilbert", "--teacher=presets/pretraining",
                       "--num_layers=1"]),
    ):  # fmt: skip
        program = distill if name == "distilled" else pretrain
        folder = f"pretrain/{name}"
        arguments = [
            *own, f"--model_dir={folder}", "--steps=10", "--checkpoint_every=4",
            "--keep_checkpoints=1", "--evaluate_every=3", "--evaluation_steps=1",
        ]  # fmt: skip
        written.append(stopped_run(program, folder, arguments))
    write_json("pretrain.json", written)


def stopped_run(program, folder, arguments):
    """SIGTERM after five updates of a program; what is kept of it, and what it goes on to."""
    with terminated(5):
        try:
            call(program, *arguments)
        except SystemExit as stopped:
            if stopped.code != 128 + signal.SIGTERM:
                raise
    with gone_on_with(folder):
        call(program, *arguments)
        written = {
            "folder": folder,
            "program": name_of(program),
            "flags": arguments,
            "steps": lines(f"{folder}/steps.jsonl"),
            "evaluations": lines(f"{folder}/evaluations.jsonl"),
        }
    assert len(lines(f"{folder}/steps.jsonl")) == 5
    return written


def write_fit():
    rng = np.random.default_rng(4)
    texts = [" ".join(rng.choice(WORDS, rng.integers(3, 9))) for _ in range(12)]
    answers = [text.split()[1] for text in texts]
    spam = {"text": texts, "label": ["ham", "spam"] * 6}
    data = {
        "classifier": (spam, {"epochs": 2}),
        "two_adapters": ({"text": texts, "label": ["x", "y"] * 6}, {"epochs": 2}),
        "quantization_aware": (spam, {"epochs": 2}),
        "pruned_neurons": (spam, {"micro_batches": 2}),
        "regressor": ({"text": texts, "label": [len(text) / 20 for text in texts]}, {}),
        "embedder": ({"first": texts, "second": texts[::-1]}, {}),
        "denoiser": ({"text": texts}, {}),
        "token_classifier": (
            {"words": [text.split() for text in texts],
             "labels": [[("O", "B-x")[word in NOUNS] for word in text.split()] for text in texts]},
            {},
        ),
        "question_answerer": (
            {"question": ["who ?"] * 12, "context": texts, "answers": [[x] for x in answers],
             "answer_starts": [[text.index(x)] for text, x in zip(texts, answers, strict=True)]},
            {},
        ),
        "multiple_choice": (
            {"context": texts, "choices": [[x, "a dog", "the king"] for x in answers],
             "label": [0, 1, 2] * 4},
            {},
        ),
    }  # fmt: skip
    written = []
    for name, (table, options) in data.items():
        folder = f"fit/{name}"
        options = {"epochs": 1, "batch_size": 2, "learning_rate": 1e-2, "checkpoint_every": 4,
                   "seed": 1, "verbose": 0, **options}  # fmt: skip
        if name == "classifier":
            held_out = {column: values[:8] for column, values in table.items()}
            options |= {"validation_data": held_out, "evaluate_every": 2, "layer_decay": 0.9}

        def go_on(name=name, folder=folder, table=table, options=options):
            task = tasks.Task.from_preset(f"presets/{name}")
            task.fit(table, **options, model_dir=folder)
            return task

        with killed(4):
            go_on()
        with gone_on_with(folder):
            task = go_on()
            asked = {k: v for k, v in table.items() if k not in ("label", "labels", "answers")}
            written.append({
                "preset": f"presets/{name}",
                "folder": folder,
                "data": table,
                "options": options,
                "steps": lines(f"{folder}/steps.jsonl"),
                "evaluations": lines(f"{folder}/evaluations.jsonl")
                if name == "classifier" else [],
                "asked": asked,
                "answers": plain(task.predict(asked, verbose=0)),
            })  # fmt: skip
    write_json("fit.json", written)

    # Two tasks on one encoder, each with its adapter.
    table = {
        "lora": {"text": texts, "label": ["x", "y"] * 6},
        "pal": {"text": texts[::-1], "label": ["x", "x", "y"] * 4},
    }
    options = {"epochs": 2, "batch_size": 2, "learning_rate": 1e-2, "checkpoint_every": 4,
               "seed": 1, "verbose": 0, "sampling": "annealed"}  # fmt: skip

    def go_on_with_both():
        encoder = kbert.Encoder.from_preset("presets/encoder")
        given = {"tokenizer": kbert.load_tokenizer("presets/encoder")}
        adapters = {
            x: kbert.edit.adapters.load_task(encoder, f"adapters/{x}", **given) for x in table
        }
        multi = tasks.MultiTask(adapters)
        multi.fit(table, **options, model_dir="fit/multi_task")
        return multi

    with killed(4):
        go_on_with_both()
    with gone_on_with("fit/multi_task"):
        multi = go_on_with_both()
        written = {
            "data": table,
            "options": options,
            "steps": lines("fit/multi_task/steps.jsonl"),
            "answers": {name: plain(multi.tasks[name].predict(TEXTS)) for name in table},
            "texts": TEXTS,
        }
    write_json("multi_task.json", written)


def write_finetune():
    rng = np.random.default_rng(5)
    rows = [f"{label},{' '.join(rng.choice(WORDS, 5))}" for label in ("ham", "spam") * 12]
    write_text("mail.csv", "kind,body\n" + "\n".join(rows) + "\n")
    given = [
        "--task=classify", "--train=mail.csv", "--dev_share=0.25", "--text_column=body",
        "--label_column=kind", "--batch_size=4", "--epochs=2", "--learning_rate=1e-2",
        "--checkpoint_every=4", "--max_length=32",
    ]  # fmt: skip
    given_preset = [*given, "--preset=presets/pretraining", "--evaluate_every=2"]
    student = ["--recipe=tinybert-task", "--teacher=presets/classifier", "--num_layers=1"]
    results = ("metric", "dev", "best_step", "steps")
    of_a_run = {
        **dict.fromkeys(("training/steps.jsonl", "training/evaluations.jsonl")),
        "results.json": results,
        "dev_answers.jsonl": None,
    }
    of_two = {f"seed-{i}/{name}": x for i in (0, 1) for name, x in of_a_run.items()}
    written = []
    for name, program, kill, own, files in (
        ("plain", finetune, 1, [*given_preset, "--freeze=encoder/embeddings/*"], of_a_run),
        ("adapter", finetune, 1, [*given_preset, "--adapter=lora:rank=2"],
         {**of_a_run, "adapter/adapter.json": ("name", "adapter", "labels")}),
        ("movement", finetune, 1, [*given_preset, "--prune_weights=movement:sparsity=0.5,"
                                   "begin_step=1,end_step=7"], of_a_run),
        ("magnitude", finetune, 1, [*given_preset, "--prune_weights=magnitude:sparsity=0.5,"
                                    "end_step=7"], of_a_run),
        ("rounded", finetune, 1, [*given_preset, "--quantization_aware"], of_a_run),
        ("seeds", finetune, 2, [*given_preset, "--seeds=2"], of_two),
        ("student", distill, 2, [*given, *student, "--first_epochs=1",
                                 "--cache_dir=teacher_of_mail"],
         {"results.json": results, "dev_answers.jsonl": None}),
    ):  # fmt: skip
        folder = f"finetune/{name}"
        arguments = [*own, f"--output_dir={folder}"]
        with killed(4, kill):
            call(program, *arguments)
        with gone_on_with(folder):
            call(program, *arguments)
            found = {}
            for file, keys in files.items():
                path = Path(folder, file)
                content = lines(path) if file.endswith("l") else json.loads(path.read_text())
                found[file] = plain({k: content[k] for k in keys} if keys else content)
            about = {"folder": folder, "program": name_of(program), "flags": arguments}
            written.append({**about, "files": found})
    for picture in Path("finetune").rglob("*.png"):  # which nothing reads
        picture.unlink()
    write_json("finetune.json", written)


def write_teacher():
    """What a teacher made of texts, and a distillation from it that was killed."""
    rng = np.random.default_rng(6)
    texts = [" ".join(rng.choice(WORDS, rng.integers(3, 9))) for _ in range(12)]
    options = {"epochs": 2, "batch_size": 4, "learning_rate": 1e-2, "checkpoint_every": 2,
               "seed": 2, "verbose": 0}  # fmt: skip

    def distil():
        teacher = tasks.Task.from_preset("presets/classifier")
        student = kbert.student(teacher, num_layers=1)
        terms = [HiddenStates(), SoftTargets(weight=2.0, temperature=2.0)]
        distiller = Distiller(student, teacher, terms, cache_dir="teacher", cache_dtype="float32")
        distiller.fit(texts, ["ham", "spam"] * 6, **options, model_dir="distilled")

    with killed(2):
        distil()
    with gone_on_with("distilled"):
        distil()
        steps = lines("distilled/steps.jsonl")
    write_json("teacher.json", {"texts": texts, "options": options, "steps": steps})


def write_outputs():
    """Files whose writer was killed; its pieces are small ones, that the files are too."""
    model = kbert.Encoder.from_preset("presets/encoder")
    tokenizer = kbert.load_tokenizer("presets/encoder")
    texts = [text for text in make_text(2, seed=7, sentences=5).split("\n") if text]

    def broken():
        yield from texts[:6]
        raise Killed

    written = []
    for path, options in (
        ("features.npy", {"pooling": "mean", "layers": -1, "dtype": "float32"}),
        ("tokens.npy", {"pooling": None, "layers": -1, "dtype": "float32"}),
        ("features.tfrecord", {"pooling": "cls", "layers": [-2, -1], "dtype": "float16"}),
    ):
        with mock.patch.object(features, "_TEXTS", 4), contextlib.suppress(Killed):
            kbert.extraction.write_features(path, model, tokenizer, broken(), **options)
        how = {name: x for name, x in options.items() if name != "dtype"}
        found = plain(kbert.features(model, tokenizer, texts, **how))
        written.append({"path": path, "texts": texts, "options": options, "features": found})
    write_json("features.json", written)

    write_text("asked.txt", "\n".join(texts) + "\n")
    masked = [text.replace(text.split()[1], "[MASK]") for text in texts]
    write_text("masked.txt", "\n".join(masked) + "\n")
    add = answer_file.AnswerFile.add

    def add_once(self, *given):
        add(self, *given)
        raise Killed

    sampling = ("--method=sampling", "--temperature=0.7", "--seed=3", "--max_new_tokens=3")
    written = []
    for program, preset, asked, suffix, options in (
        (predict, "classifier_of_windows", "asked.txt", "jsonl", []),
        (embed, "embedder", "asked.txt", "npy", ["--prompt=query"]),
        (fill_mask, "pretraining", "masked.txt", "jsonl", ["--top_k=2"]),
        (translate, "translator", "asked.txt", "jsonl", ["--max_new_tokens=3"]),
        (generate, "causal_lm", "asked.txt", "jsonl", sampling),
    ):
        name = name_of(program)
        output = f"answers/{name}.{suffix}"
        arguments = [f"--preset=presets/{preset}", f"--input={asked}", f"--output={output}"]
        arguments += options
        with (
            mock.patch.object(answer_file, "CHUNK", 4),
            mock.patch.object(answer_file.AnswerFile, "add", add_once),
            contextlib.suppress(Killed),
        ):
            call(program, *arguments)
        with gone_on_with("answers"):
            call(program, *arguments)
            answers = plain(np.load(output)) if suffix == "npy" else plain(lines(output))
        written.append({"program": name, "output": output, "flags": arguments, "answers": answers})
    write_json("answers.json", written)

    arguments = [
        "--task=classify", "--train=mail.csv", "--text_column=body", "--label_column=kind",
        "--preset=presets/pretraining", "--output_dir=augmented", "--copies=3", "--candidates=4",
        "--shards=3",
    ]  # fmt: skip
    write_shard = augmented._write_shard
    made = []

    def write_two(*given):
        if len(made) == 2:
            raise Killed
        made.append(write_shard(*given))

    with mock.patch.object(augmented, "_write_shard", write_two), contextlib.suppress(Killed):
        call(augment, *arguments)
    with gone_on_with("augmented"):
        call(augment, *arguments)
        texts = {path.name: path.read_text() for path in sorted(Path("augmented").glob("*.jsonl"))}
    write_json("augmented.json", {"flags": arguments, "files": texts})


def write_index():
    rng = np.random.default_rng(11)
    vectors, ids = rng.normal(0, 1, (5, 3)).astype("float32"), [f"text {i}" for i in range(5)]
    index = kbert.search.Index(vectors, ids, metric="cosine")
    index.save("index")
    hits = index.search(vectors[:2] + 0.1, k=3)
    written = {"queries": vectors[:2] + 0.1, "ids": hits.ids, "scores": hits.scores}
    write_json("index.json", plain(written))


def write_exports():
    """Of each runtime the smallest task that it has."""
    written = []
    for name, preset, format, precision, options in (
        ("savedmodel", "embedder", "savedmodel", "float32", {}),
        ("onnx", "classifier_of_windows", "onnx", "float32", {}),
        ("onnx_int8", "embedder", "onnx", "int8", {}),
        ("onnx_translator", "translator", "onnx", "float32", {"max_new_tokens": 4}),
        ("openvino", "embedder", "openvino", "float32", {}),
        ("litert", "embedder", "litert", "float32", {"widths": [16]}),
        ("onnx_static", "static", "onnx", "float32", {}),
    ):
        folder = f"exports/{name}"
        task = tasks.Task.from_preset(f"presets/{preset}")
        task.export(folder, format=format, precision=precision, **options)
        if format == "savedmodel":
            served = tf.saved_model.load(f"{folder}/1").signatures
            answers = plain(served["serving_default"](text=tf.constant(TEXTS)))
        else:
            answers = plain(load_exported(folder).predict(TEXTS))
        files = {path: path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()}
        write_zip(f"{folder}.zip", {f"{x.relative_to(folder)}": y for x, y in files.items()})
        shutil.rmtree(folder)
        about = {"folder": folder, "format": format, "precision": precision}
        written.append({**about, "texts": TEXTS, "answers": answers})
    write_json("exports.json", written)


def main(output):
    keras.utils.set_random_seed(0)
    os.makedirs(output)
    os.chdir(output)
    tokenizers = make_tokenizers()
    for folder in ("presets", "encoders", "adapters", "exports", "answers"):
        os.mkdir(folder)
    write_presets(tokenizers)
    write_generators(tokenizers)
    write_encoders(tokenizers)
    write_adapters(tokenizers)
    write_edits(tokenizers)
    write_shards(tokenizers)
    write_pretrain()
    write_fit()
    write_finetune()
    write_teacher()
    write_outputs()
    write_index()
    write_exports()


if __name__ == "__main__":
    main(sys.argv[1])
