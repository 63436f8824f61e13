"""`kbert.attributions`: the score of each token for an answer of a task.

Shapes: B rows of a batch, K sequences of a row, T tokens.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from kbert import inference
from kbert.attribution.gate import GatedTask, check_gate, sequences
from kbert.attribution.methods import (
    METHODS,
    WITH_BASELINE,
    WITH_GRADIENTS,
    Batch,
    Scores,
    integrated_gradients,
)
from kbert.attribution.result import Attribution, Attributions
from kbert.attribution.targets import TARGETS, WITHOUT_DEFAULT, Target, pooled_weights
from kbert.core.late import tf
from kbert.data.tables.rows import Rows
from kbert.data.tables.table import Table
from kbert.io.progress import Progress
from kbert.tasks import FineTuningTask
from kbert.tasks.fine_tuning.options import ATTRIBUTION_METHODS
from kbert.visualization.attention_reading import token_names

DEFAULT = integrated_gradients.__name__
STEPS = 50  # points of the quadrature
# A packed number is `_SIDE * (1 + number of the text) + number of the token`, above all ids.
_SIDE = 1 << 20


def attributions(
    task: FineTuningTask,
    texts: Any,
    *,
    method: str = DEFAULT,
    target: Any = None,
    baseline: str | None = None,
    steps: int | None = None,
    batch_size: int = inference.BATCH_SIZE,
    verbose: str | int = "auto",
) -> Attributions:
    """Scores the tokens of texts by their contribution to an answer of a task.

    The methods:

    - "integrated_gradients": gradients, integrated from a baseline to the token embeddings
      (Sundararajan et al. 2017, https://arxiv.org/abs/1703.01365). The scores sum to the difference
      of the logit to that of the baseline; `Attribution.completeness_error` is what is missing. The
      integral is a Gauss-Legendre quadrature.
    - "gradient_x_input": gradient times token embedding (Shrikumar et al. 2016,
      https://arxiv.org/abs/1605.01713). One backward pass; special tokens have scores too.
    - "occlusion": by how much the logit falls if the token is replaced by the baseline (Zeiler &
      Fergus 2014, https://arxiv.org/abs/1311.2901). One forward pass for each token.
    - "rollout" and "flow": by attention alone, from the positions that the head reads (Abnar &
      Zuidema 2020, https://arxiv.org/abs/2005.00928). They are the same for every label of a text.
      "flow" is slow for more than 50 tokens.

    Scores explain one number of the task:

    | task | default target | other targets |
    |---|---|---|
    | `TextClassifier` | logit of the most probable label | a label, by name or index |
    | `TextRegressor` | the score | |
    | `MultipleChoice` | logit of the chosen text | the index of a choice |
    | `TokenClassifier` | none: name a word | word index, or (word index, label) |
    | `QuestionAnswerer` | start logit + end logit of the answer | (start, end) in characters |

    A long text is read as in `predict`. Classes and scores of all its windows are explained
    together. The label of a word and an answer are explained in one window: for a word the one with
    most context, for an answer the first one that contains it.

    Args:
        task: a task of the table above on an encoder or a decoder.
        texts: one text, or examples in the form of `predict`.
        method: name of the method.
        target: the explained answer; a list has one for each example. None = the default target.
        baseline: embedding that replaces those of the texts' tokens, for "integrated_gradients" and
            "occlusion": that of the token "mask" or "pad", or "zero". None = "mask", or "zero" if
            the tokenizer has no such token. Positions and special tokens stay as they are.
        steps: points of the quadrature of "integrated_gradients"; None = 50.
        batch_size: maximum number of rows in a batch. Memory does not grow with the steps.
        verbose: "auto" = a progress bar if it takes longer than a moment, 0 = none.

    Returns:
        One `Attribution` for each example, in order.

    Raises:
        ValueError: the task, method, target or baseline is not supported or does not fit, or the
            backend has no gradients here (PyTorch).

    Example:
        >>> import kbert
        >>> tokenizer = kbert.WordPieceTokenizer(
        ...     ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "free", "money", "lunch"])
        >>> config = kbert.EncoderConfig(vocabulary_size=8, hidden_size=8, num_layers=1,
        ...                              num_heads=2, intermediate_size=16)
        >>> task = kbert.TextClassifier(kbert.Encoder(config), tokenizer, ["ham", "spam"])
        >>> attribution, = attributions(task, "free money", target="spam")
        >>> attribution.tokens, attribution.label
        (['[CLS]', 'free', 'money', '[SEP]'], 'spam')
        >>> attribution.completeness_error < 1e-4
        True
    """
    _check(task, method, baseline, steps)
    inference.check_batch_size(batch_size)
    table = task.as_table([texts] if isinstance(texts, str | bytes) else texts)
    found, cut = explain_table(
        task,
        table,
        method=method,
        target=target,
        baseline=baseline,
        steps=steps,
        batch_size=batch_size,
        verbose=verbose,
    )
    task.report_cut(cut, len(table))
    return found


def explain_table(
    task: FineTuningTask,
    table: Table,
    *,
    method: str,
    target: Any = None,
    baseline: str | None = None,
    steps: int | None = None,
    batch_size: int = inference.BATCH_SIZE,
    verbose: str | int = 0,
) -> tuple[Attributions, int]:
    """Explains a part of a longer input; the arguments are checked by the caller.

    Args:
        task: the task.
        table: the part.
        method: name of the method.
        target: like in `attributions`.
        baseline: like in `attributions`.
        steps: like in `attributions`.
        batch_size: maximum number of rows in a batch.
        verbose: 1 = a progress bar, 0 = none, "auto" = a bar if it takes long.

    Returns:
        The attributions, and the number of truncated examples, for `report_cut` on the whole input.

    Raises:
        ValueError: like `attributions`, for targets and baselines.
    """
    gated = _gated(task)
    requests = target if isinstance(target, list) else [target] * len(table)
    if len(requests) != len(table):
        raise ValueError(
            "A list of targets must have one for each example. Received: "
            f"{len(requests)} targets for {len(table)} examples"
        )
    options: dict[str, Any] = {"method": method, "steps": steps or STEPS, "batch_size": batch_size}
    options["baseline"] = _baseline(gated, method, baseline)
    results, cut = Attributions(), 0
    with Progress("attributions", len(table), " texts", verbose=verbose) as bar:
        for part, rows in task.predictor.parts(table):
            outputs, _ = task.predictor.outputs(rows, batch_size)
            answers = task.decode(part, rows, outputs)
            wanted = requests[len(results) : len(results) + len(part)]
            targets = list(TARGETS[str(task.kind)](task, part, rows, answers, wanted))
            results += _explained(gated, rows, targets, len(results), bar, **options)
            cut += rows.cut
    return results, cut


def check_default_target(task: Any, method: str = DEFAULT) -> None:
    """Raises ValueError unless `attributions` supports the task and method without a target."""
    _check(task, method, None, None)
    if task.kind in WITHOUT_DEFAULT:
        raise ValueError(
            "Attributions of this task require a `target` for each text, see "
            f"`kbert.attributions`. Received: a {type(task).__name__} without"
        )
    check_gate(task)


def has_default_target(task: Any, method: str = DEFAULT) -> bool:
    """Returns whether `attributions` supports the task without a target, so not for taggers."""
    try:
        check_default_target(task, method)
    except ValueError:
        return False
    return True


def _gated(task: FineTuningTask) -> GatedTask:
    """Returns the task's cached `GatedTask`, or a new one if layers or variables are others."""
    attributes: dict[str, Any] = task.__dict__  # Keras would track it as a layer
    gated = attributes.get("_gated")
    if gated is None or not gated.is_current:
        gated = attributes["_gated"] = GatedTask(task)
    return gated


def _check(task: Any, method: str, baseline: str | None, steps: int | None) -> None:
    """Raises ValueError if an argument of `attributions` is not supported."""
    if not isinstance(task, FineTuningTask) or task.kind not in TARGETS:
        raise ValueError(
            f"Attributions require a task of the kinds {', '.join(TARGETS)}. Received: a "
            f"{type(task).__name__}"
        )
    if method not in ATTRIBUTION_METHODS:
        raise ValueError(
            f"method must be one of {', '.join(ATTRIBUTION_METHODS)}. Received: method={method!r}"
        )
    if baseline is not None and method not in WITH_BASELINE:
        raise ValueError(
            f"`baseline` is only for {' and '.join(WITH_BASELINE)}. Received: "
            f"baseline={baseline!r} for {method}"
        )
    if steps is not None and (method != DEFAULT or not isinstance(steps, int) or steps < 1):
        raise ValueError(
            "`steps` must be a whole number of 1 or more, and is only for integrated_gradients. "
            f"Received: steps={steps!r} for {method}"
        )
    if method in WITH_GRADIENTS and keras.backend.backend() not in ("tensorflow", "jax"):
        raise ValueError(
            "Gradients require the backend TensorFlow or JAX. Received: "
            f"KERAS_BACKEND={keras.backend.backend()}"
        )


def _baseline(gated: GatedTask, method: str, name: str | None) -> np.ndarray:
    """Returns the embedding (E,) that replaces those of text tokens; see `attributions`."""
    pad_id: Any = gated.task.form.pad_id
    tokens = {"mask": gated.task.tokenizer.mask_id, "pad": pad_id, "zero": None}
    if name is None:
        name = "zero" if method not in WITH_BASELINE or tokens["mask"] is None else "mask"
    if name not in tokens or (tokens[name] is None and name != "zero"):
        raise ValueError(
            "baseline must be mask, pad or zero, and its token must be in the vocabulary. "
            f"Received: baseline={name!r}"
        )
    return gated.embedding(tokens[name])


def _explained(
    gated: GatedTask,
    rows: Rows,
    targets: Sequence[Target],
    before: int,
    bar: Progress,
    *,
    method: str,
    steps: int,
    baseline: np.ndarray,
    batch_size: int,
) -> list[Attribution]:
    """Returns the attributions of a part of a table.

    Args:
        gated: the task, with its gate installed.
        rows: rows of the part.
        targets: target of each example of the part.
        before: number of examples before the part, for the progress bar.
        bar: the progress bar.
        method: name of the method.
        steps: points of the quadrature.
        baseline: (E,).
        batch_size: maximum number of rows in a batch.
    """
    task = gated.task
    found: list[Attribution | None] = [None] * len(targets)
    numbered = _numbered(rows)
    example_of = {target.row: number for number, target in enumerate(targets)}
    done = before
    for index, assembled in task.predictor.batches(rows, batch_size, np.array([*example_of], int)):
        features = {name: np.asarray(x) for name, x in assembled.items()}
        numbers = sequences(task.assemble(numbered.gather(index)), "token_ids")
        examples = [example_of[row] for row in index.tolist()]
        chosen = [targets[number] for number in examples]
        is_real = sequences(features, "padding_mask") > 0
        in_rows = [{name: x[i] for name, x in features.items()} for i in range(len(index))]
        places = [target.logits(row) for target, row in zip(chosen, in_rows, strict=True)]
        read = [
            pooled_weights(task, mask) if target.read is None else target.read(row, mask)
            for target, row, mask in zip(chosen, in_rows, is_real, strict=True)
        ]
        scores = METHODS[method](
            Batch(
                gated=gated,
                features=features,
                index={name: np.array([x[name] for x in places]) for name in places[0]},
                is_real=is_real,
                is_text=is_real & (numbers >= _SIDE),
                read=np.stack(read),
                baseline=baseline,
                steps=steps,
                at_once=max(1, batch_size * task.row_length // is_real[0].size),
            )
        )
        ids = sequences(features, "token_ids")
        for row, number in enumerate(examples):
            arrays = (ids[row], numbers[row], is_real[row])
            found[number] = _attribution(task, targets[number], *arrays, row, scores, method)
        done += len(index)
        bar.show(done)
    return [attribution for attribution in found if attribution is not None]


def _numbered(rows: Rows) -> Rows:
    """Returns rows whose token ids are numbers that tell text and place of a token.

    A number is `_SIDE * (1 + number of the text) + number of the token`. Packing moves them like
    token ids, so they show where each token of a row comes from.
    """
    ragged = dict(rows.ragged)
    for side, name in enumerate(x for x in ("first", "second") if x in ragged):
        column = ragged[name]
        innermost = column if column.ragged_rank == 1 else column.values  # choices: (N, A, ragged)
        numbers = tf.cast(tf.ragged.range(innermost.row_lengths()).flat_values, tf.int32)
        texts = tf.fill(tf.shape(numbers), side)
        if column.ragged_rank == 2:
            choices = tf.ragged.range(column.row_lengths()).flat_values
            texts += tf.cast(tf.gather(choices, innermost.value_rowids()), tf.int32)
        ragged[name] = column.with_flat_values(_SIDE * (1 + texts) + numbers)
    return dataclasses.replace(rows, ragged=ragged)


def _attribution(
    task: FineTuningTask,
    target: Target,
    ids: np.ndarray,
    numbers: np.ndarray,
    is_real: np.ndarray,
    row: int,
    scores: Scores,
    method: str,
) -> Attribution:
    """Returns the attribution of one example.

    Args:
        task: the task.
        target: the explained answer.
        ids: (K, T), token ids.
        numbers: (K, T), packed numbers, see `_numbered`; below `_SIDE` for special tokens.
        is_real: (K, T), whether a position is a token.
        row: number of the row in `scores`.
        scores: scores of the batch.
        method: name of the method.
    """
    ids, numbers = ids[is_real], numbers[is_real]
    sides = numbers // _SIDE - 1  # -1 for special tokens
    starts, ends, words = np.zeros((3, len(ids)), int)
    words[:] = -1
    for side, text in enumerate(target.texts):
        tokens = np.flatnonzero(sides == side)
        places = numbers[tokens] % _SIDE
        starts[tokens], ends[tokens] = text.starts[places], text.ends[places]
        words[tokens] = text.words[places]
    names = task.form.names
    in_vocabulary = [i for i in ids.tolist() if i not in names]
    spelled = iter(token_names(task.tokenizer, in_vocabulary))
    baseline = scores.baseline_values
    return Attribution(
        tokens=[names[i] if i in names else next(spelled) for i in ids.tolist()],
        scores=scores.scores[row][is_real],
        texts=tuple(text.text for text in target.texts),
        sides=sides,
        starts=starts,
        ends=ends,
        words=words,
        label=target.label,
        value=float(scores.values[row]),
        method=method,
        baseline_value=None if baseline is None else float(baseline[row]),
    )
