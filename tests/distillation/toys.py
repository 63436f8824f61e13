"""Students, teachers and batches of every task with heads, tiny and drawn at random."""

import keras
import numpy as np

import kbert
from kbert import tasks
from kbert.data.tables.table import as_table
from tests.harness import randomise, to_numpy
from tests.tasks import toy

NO_DROPOUT = {"dropout": 0.0, "attention_dropout": 0.0}
SIZES = {
    "hidden_size": 16,
    "num_layers": 4,
    "num_heads": 2,
    "intermediate_size": 24,
    "max_positions": 32,
}
LONG = "the old man and the king by the river"
TEXTS = ["the red fox", "a dog", LONG, "one two three", "moon"]
PAIRS = {"first": TEXTS, "second": ["a pen", LONG, "is it day?", "", "the sun"]}
# Kind, arguments, five labelled examples.
TABLES = {
    "classes": (tasks.TextClassifier, {"labels": ["a", "b", "c"]}, (TEXTS, [0, 1, 2, 0, 1])),
    "pairs": (tasks.TextClassifier, {"labels": ["a", "b"]}, {**PAIRS, "label": [0, 1, 1, 0, 1]}),
    "several": (
        tasks.TextClassifier,
        {"labels": ["a", "b", "c"], "multi_label": True},
        (TEXTS, [["a"], [], ["b", "c"], ["c"], []]),
    ),
    "windows": (
        tasks.TextClassifier,
        {"labels": ["a", "b", "c"], "max_length": 6, "doc_stride": 3},
        (TEXTS, [0, 1, 2, 0, 1]),
    ),
    "numbers": (tasks.TextRegressor, {}, (TEXTS, [0.5, 1.5, -1.0, 2.0, 0.0])),
    "tags": (
        tasks.TokenClassifier,
        {"labels": ["D", "N", "V"], "max_length": 8},
        {
            "words": [text.split() or ["a"] for text in TEXTS],
            "labels": [[i % 3 for i, _ in enumerate(text.split() or ["a"])] for text in TEXTS],
        },
    ),
    "answers": (
        tasks.QuestionAnswerer,
        {"max_length": 12, "doc_stride": 4, "max_question_length": 4},
        {
            "question": ["he?", "in?", "he?", "at?", "he?"],
            "context": [LONG, "a house", LONG, "the moon", "the king"],
            "answers": [["king"], ["house"], ["man"], [], ["king"]],
            "answer_starts": [[LONG.index("king")], [2], [LONG.index("man")], [], [4]],
        },
    ),
    "choices": (
        tasks.MultipleChoice,
        {},
        {
            "context": TEXTS,
            "choices": [["a", LONG], ["pen", "fox", "dog"], ["it", "is"], ["", "a"], ["a", "of"]],
            "label": [0, 2, 1, 0, 1],
        },
    ),
}
TEXT = {"text": {"next_sentence": True}, "text alone": {"next_sentence": False}}
KINDS = [*TABLES, *TEXT]


def make_task(name, tokenizer, seed=0, dtype=None, sigma=0.3, **sizes):
    """A task of one of `KINDS`, its weights drawn."""
    fields = {**SIZES, **NO_DROPOUT, "vocabulary_size": tokenizer.vocabulary_size, **sizes}
    encoder = kbert.Encoder(kbert.EncoderConfig(**fields), dtype=dtype)
    kind, options = (tasks.Pretraining, TEXT[name]) if name in TEXT else TABLES[name][:2]
    task = kind(encoder, tokenizer, **options)
    randomise(task, sigma=sigma, seed=seed)
    return task


_BATCHES = {}


def make_batch(name, task, batch_size=8):
    """A batch of the five examples (or of what rows they give) and of copies without weight.

    Made once for each config: that costs more than the forward of a model.
    """
    key = name, batch_size, str(task.encoder.config), "\n".join(task.tokenizer.vocabulary)
    if key not in _BATCHES:
        _BATCHES[key] = _make_batch(name, task, batch_size)
    return {name: values.copy() for name, values in _BATCHES[key].items()}


def _make_batch(name, task, batch_size):
    if name in TEXT:
        rows = next(iter(toy.batches(task.tokenizer, batch_size=6, next_sentence=name == "text")))
        batch = {key: value.numpy() for key, value in rows.items()}
        batch["mask_weights"][1, 1] = 1  # another number of masks than of rows
        batch["padding_mask"][5:] = 0  # a row that only fills the batch up
        batch["mask_weights"][5:] = 0
        return batch
    data = TABLES[name][2]
    table = as_table(*data) if isinstance(data, tuple) else as_table(data)
    rows = task.tokenize(table, labelled=True)
    batches = task.batches(rows, batch_size=batch_size, shuffle=False, by_length=False, epochs=1)
    return next(iter(batches.as_numpy_iterator()))


def encoder_inputs(batch, encoder):
    """What an encoder reads of a batch, a row each window and choice."""
    names = ("token_ids", "padding_mask", *["segment_ids"] * bool(encoder.config.num_segments))
    return {name: batch[name].reshape(-1, batch[name].shape[-1]) for name in names}


def counted(batch):
    """(R, T): tokens of rows that count."""
    real = batch["padding_mask"].astype("float64")
    if "label_weights" in batch:
        weights = batch["label_weights"]
        counts = weights.reshape(len(weights), -1).max(1) > 0
        real = real * counts.reshape(-1, *[1] * (real.ndim - 1))
    return real.reshape(-1, real.shape[-1])


def read_encoder(task, batch):
    """All that an encoder makes of a batch, in float64."""
    inputs = encoder_inputs(batch, task.encoder)
    return to_numpy(task.encoder(inputs, return_hidden_states=True, return_internals=True))


def values(pairs):
    """name -> (float, float)."""
    return {
        name: tuple(float(keras.ops.convert_to_numpy(x)) for x in pair)
        for name, pair in pairs.items()
    }


def assert_pairs(found, wanted, rtol=1e-4, atol=1e-5):
    """Both parts of each pair of `wanted` in `found`."""
    assert wanted.keys() <= found.keys(), f"{sorted(found)} lack some of {sorted(wanted)}"
    for name, pair in wanted.items():
        np.testing.assert_allclose(found[name], pair, rtol=rtol, atol=atol, err_msg=name)
