"""Probes: how well a linear classifier reads a property from each layer of a frozen encoder.

Sources: Tenney et al. 2019, "BERT Rediscovers the Classical NLP Pipeline",
https://arxiv.org/abs/1905.05950 (scalar mixes over layers, centres of gravity); Liu et al. 2019,
"Linguistic Knowledge and Transferability of Contextual Representations",
https://arxiv.org/abs/1903.08855 (a linear probe for each layer).

Shapes: N texts or words, L layers, H width.
"""

import dataclasses
from typing import Any

import keras
import numpy as np

from kbert.core.late import optional
from kbert.data.tables.table import Table, as_table
from kbert.extraction.extract import features
from kbert.tokenizers.base import Tokenizer

_SET_HERE = ("layers", "pooling", "words", "with_tokens")  # arguments of `features`
_MIX_STEPS, _MIX_BATCH, _MIX_RATE = 500, 256, 1e-2


@dataclasses.dataclass(frozen=True)
class Probe:
    """Held-out accuracies of the probes of one property.

    Attributes:
        scores: (L + 1,), accuracy for each hidden state; 0 is the embeddings, L the last layer.
        baseline: accuracy of the most frequent class of the training data.
        mix: (L + 1,), learned weights of the hidden states, which sum to 1; None without `mix`.
    """

    scores: np.ndarray
    baseline: float
    mix: np.ndarray | None = None

    @property
    def best_layer(self) -> int:
        """The hidden state with the highest accuracy, the lowest of several."""
        return int(self.scores.argmax())

    @property
    def expected_layer(self) -> float:
        """The mean of the layers 0..L under the weights of the mix, its centre of gravity.

        Raises:
            ValueError: the probe has no mix.
        """
        if self.mix is None:
            raise ValueError("The expected layer requires probe(mix=True). Received: mix=False")
        return float(self.mix @ np.arange(len(self.mix)))


def probe(
    encoder: keras.Model,
    tokenizer: Tokenizer,
    data: Any,
    labels: Any = None,
    *,
    validation_data: Any = None,
    validation_split: float = 0.2,
    mix: bool = False,
    **options: Any,
) -> Probe:
    """Trains a linear probe on each hidden state of a frozen encoder, and scores it.

    The probes are logistic regressions of scikit-learn (`pip install 'kbert[sklearn]'`) on
    standardised features: the vectors of words for tagged sentences, else the mean of a text's
    tokens. The encoder runs once. Memory holds the features of all layers: 4 (L + 1) H bytes for
    each word or text, 40 kB for BERT-base.

    A high score says that a property can be read from a layer, not that the model uses it.

    Args:
        encoder: a `kbert.Encoder`.
        tokenizer: tokenizer of the encoder.
        data: labelled examples, as `kbert.data.as_table` takes them: texts or pairs with a `label`,
            or lists of words with a label for each word.
        labels: labels of the examples, if `data` has none.
        validation_data: held-out examples in a form of `data`, or a tuple of data and labels.
        validation_split: share of `data` that is held out instead, between 0 and 1: its last rows.
        mix: whether to also learn a scalar mix of all hidden states, for `expected_layer`.
        **options: arguments of `kbert.features`, such as `max_length`, `merge` or `batch_size`; not
            `layers`, `pooling`, `words` and `with_tokens`, which a probe sets.

    Raises:
        ImportError: scikit-learn is not installed.
        TypeError: an argument is unknown, or one that a probe sets.
        ValueError: the data has no labels, the labels do not fit the words, `validation_split` is
            not between 0 and 1, or fewer than two classes or no held-out examples remain.

    Example:
        >>> import kbert
        >>> from kbert.tokenizers import SPECIAL_TOKENS
        >>> tokenizer = kbert.WordPieceTokenizer([*SPECIAL_TOKENS, "dogs", "cats", "run", "eat"])
        >>> encoder = kbert.Encoder(kbert.family("bert-tiny").replace(vocabulary_size=9))
        >>> words = [["dogs", "run"], ["cats", "eat"], ["dogs", "eat"], ["cats", "run"]]
        >>> probe(encoder, tokenizer, words, [["noun", "verb"]] * 4).scores.tolist()
        [1.0, 1.0, 1.0]
    """
    if refused := [name for name in _SET_HERE if name in options]:
        raise TypeError(
            f"A probe sets {', '.join(_SET_HERE)} itself: it reads all layers, and the mean of a "
            f"text or each word. Received: {', '.join(f'{x}={options[x]!r}' for x in refused)}"
        )
    table = as_table(data, labels)
    if validation_data is None:
        if not 0 < validation_split < 1:
            raise ValueError(
                "validation_split must be a share between 0 and 1. Received: "
                f"validation_split={validation_split!r}"
            )
        held_out = round(len(table) * validation_split)
        table, other = table[: len(table) - held_out], table[len(table) - held_out :]
    else:
        other = as_table(validation_data)
    parts = [_labels_of(part) for part in (table, other)]
    if len(set(parts[0])) < 2 or not parts[1]:
        raise ValueError(
            "A probe requires two classes and held-out examples. Received: "
            f"{len(set(parts[0]))} classes, {len(parts[1])} held-out labels"
        )
    states = [_states(encoder, tokenizer, part, options) for part in (table, other)]
    for part_labels, part_states in zip(parts, states, strict=True):
        if len(part_labels) != part_states.shape[1]:
            raise ValueError(
                "Each word must have a label. Received: "
                f"{part_states.shape[1]} words and {len(part_labels)} labels"
            )
    pipeline, linear, scaling = (
        optional(f"sklearn.{name}", "sklearn", "A probe")
        for name in ("pipeline", "linear_model", "preprocessing")
    )
    scores = []
    for train, test in zip(*states, strict=True):
        regression = linear.LogisticRegression(max_iter=1000)
        model = pipeline.make_pipeline(scaling.StandardScaler(), regression)
        scores.append(model.fit(train, parts[0]).score(test, parts[1]))
    names, counts = np.unique(parts[0], return_counts=True)
    return Probe(
        scores=np.array(scores),
        baseline=float(np.mean(np.array(parts[1]) == names[counts.argmax()])),
        mix=_learn_mix(states[0], np.searchsorted(names, parts[0])) if mix else None,
    )


def _labels_of(table: Table) -> list[str]:
    """Returns the labels of a table's texts, or of all its words, as strings."""
    if "words" in table:
        return [str(label) for row in table["labels"] for label in row]
    return [str(label) for label in table["label"]]


def _states(
    encoder: keras.Model, tokenizer: Tokenizer, table: Table, options: dict[str, Any]
) -> np.ndarray:
    """Returns the hidden states (L + 1, N, H) of a table's texts, or of all its words.

    `options` are arguments of `kbert.features`.
    """
    config = encoder.config
    layers = list(range(config.num_layers + 1))
    words = "words" in table
    found: Any = features(encoder, tokenizer, table, layers=layers, words=words, **options)
    joined = np.concatenate(found) if words else found
    return joined.reshape(len(joined), len(layers), config.hidden_size).swapaxes(0, 1)


def _learn_mix(states: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Learns a softmax regression on a scalar mix of states; returns its weights (L + 1,).

    Both are trained together by Adam, on standardised states: else the layer with the largest
    entries would have the largest weight.

    Args:
        states: hidden states (L + 1, N, H) float32.
        labels: (N,), numbers of C classes.
    """
    scaled = (states - states.mean(1, keepdims=True)) / (states.std(1, keepdims=True) + 1e-6)
    answers = np.eye(labels.max() + 1, dtype=np.float32)[labels]  # (N, C)
    shapes = (len(states),), (states.shape[2], answers.shape[1]), answers.shape[1:]
    parameters = [np.zeros(shape, np.float32) for shape in shapes]  # mix, kernel, bias
    moments = [[np.zeros_like(x), np.zeros_like(x)] for x in parameters]
    rng = np.random.default_rng(0)
    for step in range(1, _MIX_STEPS + 1):
        rows = rng.integers(0, len(labels), _MIX_BATCH)
        for parameter, moment, gradient in zip(
            parameters, moments, _mix_gradients(scaled[:, rows], answers[rows], *parameters),
            strict=True,
        ):  # fmt: skip
            moment[0] += 0.1 * (gradient - moment[0])
            moment[1] += 0.001 * (gradient**2 - moment[1])
            mean, square = moment[0] / (1 - 0.9**step), moment[1] / (1 - 0.999**step)
            parameter -= _MIX_RATE * mean / (np.sqrt(square) + 1e-8)
    return _softmax(parameters[0])


def _mix_gradients(
    states: np.ndarray,
    answers: np.ndarray,
    scalars: np.ndarray,
    kernel: np.ndarray,
    bias: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the gradients of the mean cross-entropy of a batch, in the order of the parameters.

    Args:
        states: (L + 1, B, H).
        answers: (B, C), one-hot.
        scalars: (L + 1,), logits of the mix.
        kernel: (H, C).
        bias: (C,).
    """
    weights = _softmax(scalars)
    mixed = np.tensordot(weights, states, 1)  # (B, H)
    logits = (_softmax(mixed @ kernel + bias) - answers) / len(answers)  # gradient, (B, C)
    by_weight = np.tensordot(states, logits @ kernel.T, 2)  # (L + 1,)
    return weights * (by_weight - weights @ by_weight), mixed.T @ logits, logits.sum(0)


def _softmax(logits: np.ndarray) -> np.ndarray:
    exponentials = np.exp(logits - logits.max(-1, keepdims=True))
    return exponentials / exponentials.sum(-1, keepdims=True)
