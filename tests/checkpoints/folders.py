"""A folder of each format, whole and small, for tests that damage them."""

import functools
import json

import tensorflow as tf

import kbert
from kbert.checkpoints.google.names import bert_rules
from kbert.checkpoints.renames import write_arrays
from kbert.models.weights import get_arrays
from kbert.tokenizers.bpe.byte_alphabet import CHARACTERS
from tests.harness import tiny_config
from tests.models.elmo.elmo_reference import OPTIONS, make_weights, write_folder

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "fox", "##es"]
CONFIG = tiny_config(vocabulary_size=len(PIECES), hidden_size=8, num_heads=2, num_layers=1)


@functools.cache
def one_tokenizer():
    return kbert.WordPieceTokenizer(PIECES)


def make_task():
    return kbert.tasks.TextClassifier(kbert.Encoder(CONFIG), one_tokenizer(), ["no", "yes"])


def write_kbert(folder):
    make_task().save_to_preset(folder)


def write_huggingface(folder, **options):
    make_task().save_to_preset(folder, "huggingface", **options)
    (folder / "special_tokens_map.json").write_text('{"mask_token": "[MASK]"}')


def write_shards(folder):
    write_huggingface(folder, max_shard_size=1000)


def write_gpt2(folder):
    tokenizer = kbert.BytePairTokenizer([*CHARACTERS, "<|endoftext|>"], [])
    sizes = {"hidden_size": 8, "num_layers": 1, "num_heads": 2, "intermediate_size": 32}
    config = kbert.DecoderConfig(vocabulary_size=257, max_positions=12, **sizes)
    kbert.Decoder(config).save_to_preset(folder, "huggingface")
    tokenizer.save(folder)


def write_google(folder):
    arrays = get_arrays(kbert.Encoder(CONFIG), "encoder")
    names = {
        "vocab_size": "vocabulary_size",
        "hidden_size": "hidden_size",
        "num_hidden_layers": "num_layers",
        "num_attention_heads": "num_heads",
        "intermediate_size": "intermediate_size",
        "max_position_embeddings": "max_positions",
        "type_vocab_size": "num_segments",
    }
    content = {there: getattr(CONFIG, here) for there, here in names.items()}
    folder.mkdir()
    (folder / "bert_config.json").write_text(json.dumps({**content, "hidden_act": "gelu"}))
    (folder / "vocab.txt").write_text("".join(f"{piece}\n" for piece in PIECES))
    there = write_arrays(bert_rules(CONFIG), arrays)
    tf.raw_ops.SaveV2(
        prefix=str(folder / "bert_model.ckpt"),
        tensor_names=list(there),
        shape_and_slices=[""] * len(there),
        tensors=[tf.constant(array) for array in there.values()],
    )


def write_bilm(folder):
    folder.mkdir()
    write_folder(folder, OPTIONS, make_weights(OPTIONS))
    words = "".join(f"{word}\n" for word in ("</S>", "<S>", "<UNK>", "the"))
    (folder / "vocab.txt").write_text(words)


WRITERS = {
    "kbert": write_kbert,
    "huggingface": write_huggingface,
    "shards": write_shards,
    "gpt2": write_gpt2,
    "google": write_google,
    "bilm": write_bilm,
}
