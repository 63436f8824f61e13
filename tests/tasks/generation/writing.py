"""Tiny models that write: a language of letters, and batches made by hand."""

import keras
import numpy as np
import tensorflow as tf

import kbert

LETTERS = "abcdefgh"
SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
SIZES = {
    "hidden_size": 32,
    "num_layers": 1,
    "num_heads": 4,
    "intermediate_size": 64,
    "dropout": 0.0,
    "attention_dropout": 0.0,
}


def tokenizer(*more: str) -> kbert.WordPieceTokenizer:
    return kbert.WordPieceTokenizer([*SPECIALS, *LETTERS, *more])


def translator(sigma=None, **settings) -> kbert.Translator:
    """Its table has three rows more than the tokenizer has entries."""
    keras.utils.set_random_seed(1)
    config = kbert.Seq2SeqConfig(
        vocabulary_size=16, max_positions=32, initializer_range=sigma, **SIZES
    )
    return kbert.Translator(kbert.Seq2Seq(config), tokenizer(), **settings)


def causal_lm(own=None, sigma=0.15, max_positions=64) -> kbert.tasks.CausalLM:
    keras.utils.set_random_seed(1)
    own = own or tokenizer("##b", ".", "'")
    config = kbert.DecoderConfig(
        vocabulary_size=own.vocabulary_size + 2,
        max_positions=max_positions,
        initializer_range=sigma,
        **SIZES,
    )
    return kbert.tasks.CausalLM(kbert.Decoder(config), own)


def reversed_pairs(count, seed=0) -> list[tuple[str, str]]:
    """("a b c", "c b a"), of two to five letters."""
    rng = np.random.default_rng(seed)
    sources = [rng.choice(list(LETTERS), rng.integers(2, 6)) for _ in range(count)]
    return [(" ".join(x), " ".join(x[::-1])) for x in sources]


def random_batches(steps, rows=4, length=6, seed=0) -> list[dict]:
    """Of random ids for both tasks; weights of 0 and 1 at random, and padding."""
    rng = np.random.default_rng(seed)
    shape = (steps, rows, length)

    def ids():
        return rng.integers(5, 13, shape).astype("int32")

    mask = (np.arange(length) < rng.integers(2, length + 1, shape[:2])[..., None]).astype("int32")
    batches = {
        "encoder_token_ids": ids(),
        "encoder_padding_mask": mask,
        "decoder_token_ids": ids(),
        "decoder_padding_mask": np.ones(shape, "int32"),
        "token_ids": ids(),
        "targets": ids(),
        "weights": (rng.random(shape) < 0.6).astype("float32"),
        "position": np.zeros((steps, rows, 3), "int32"),
    }
    return [{name: x[step] for name, x in batches.items()} for step in range(steps)]


def dataset(batches) -> tf.data.Dataset:
    stacked = keras.tree.map_structure(lambda *x: np.stack(x), *batches)
    return tf.data.Dataset.from_tensor_slices(stacked)


def log_softmax(logits) -> np.ndarray:
    logits = np.asarray(logits, "float64")
    logits = logits - logits.max(-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def check_replicas(make, mirrored, batches) -> None:
    """Three updates on one device and on two end in the same weights and losses."""
    results = []
    for strategy in (tf.distribute.get_strategy(), mirrored):
        with strategy.scope():
            task = make()
            task.compile(kbert.training.AdamW(1e-2, weight_decay=0.0))
        history = task.fit(dataset(batches), verbose=0).history
        results.append((history, [np.asarray(v) for v in task.trainable_variables]))
    (one, weights), (two, others) = results
    assert one.keys() == two.keys()
    for name in one:
        np.testing.assert_allclose(two[name], one[name], rtol=1e-4, err_msg=name)
    for a, b in zip(weights, others, strict=True):
        np.testing.assert_allclose(b, a, atol=2e-4)
