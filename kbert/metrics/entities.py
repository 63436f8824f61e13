"""Entities in label sequences, and their precision, recall and F1.

A label is "O" for a word outside of entities, or a prefix and a type: "B-person". BIO has the
prefixes B (first word) and I (inside). BIOES also marks the last word (E) and single-word
entities (S); BILOU calls these two L and U. IOB1, which uses B only between two adjacent entities
of the same type, is read by the lenient rules.

Shapes: W words of all sentences together, E entities of all sentences, K types.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from kbert.core.text_table import text_table
from kbert.core.types import Values

_LABEL = re.compile(r"(O)|([BIESLU])(?:-(.+))?", re.DOTALL)
_PREFIXES = {"BIO": "BI", "BIOES": "BIES", "BILOU": "BILU"}
_AS_BIOES = {"L": "E", "U": "S"}
_NO_TYPE = "_"  # type of labels that consist of a prefix only


class Entity(NamedTuple):
    """The type of an entity and its range of words, end exclusive."""

    label: str
    start: int
    end: int


def find_scheme(names: Iterable[str]) -> str | None:
    """Detects the tagging scheme of a set of labels.

    Args:
        names: the labels.

    Returns:
        "BIO", "BIOES" or "BILOU"; None if no scheme fits all labels (such as parts of speech).

    Example:
        >>> find_scheme(["O", "B-person", "I-person"]), find_scheme(["NOUN", "VERB"])
        ('BIO', None)
    """
    matches = [_LABEL.fullmatch(name) for name in names]
    if not matches or None in matches:
        return None
    used_prefixes = {match[2] for match in matches if match and match[2]}
    fits = (scheme for scheme, prefixes in _PREFIXES.items() if used_prefixes <= set(prefixes))
    return next(fits, None) if used_prefixes else None


def entity_spans(labels: Sequence[str], *, scheme: str | None = None) -> list[Entity]:
    """Returns the entities of one sentence.

    Args:
        labels: labels of the sentence, one per word.
        scheme: None reads any sequence, as conlleval does: an entity begins wherever a word does
            not continue the entity before it, so "O I-person" contains one too. "BIO", "BIOES" and
            "BILOU" are strict: entities begin with B (or S, U) and, in the latter two, end with
            E (L) or S (U); anything else is not an entity.

    Returns:
        The entities from left to right.

    Raises:
        ValueError: a label is not an entity label, or not one of the scheme.

    Example:
        >>> entity_spans(["B-person", "I-person", "O", "I-place"])
        [Entity(label='person', start=0, end=2), Entity(label='place', start=3, end=4)]
        >>> entity_spans(["B-person", "I-person", "O", "I-place"], scheme="BIO")
        [Entity(label='person', start=0, end=2)]
    """
    types, starts, ends = (column.tolist() for column in _spans([labels], scheme))
    return [Entity(*entity) for entity in zip(types, starts, ends, strict=True)]


@dataclass(frozen=True)
class EntityReport:
    """Scores of predicted entities; an entity is correct if its type and both ends match.

    Attributes:
        types: entity types, sorted.
        precision: (K,) share of predicted entities that are correct; 0 if none was predicted.
        recall: (K,) share of labelled entities that were found; 0 if there is none.
        f1: (K,) harmonic mean of precision and recall.
        support: (K,) number of labelled entities.
        overall: "precision", "recall" and "f1" of all types together (micro average).
    """

    types: list[str]
    precision: np.ndarray
    recall: np.ndarray
    f1: np.ndarray
    support: np.ndarray
    overall: dict[str, float]

    @property
    def scores(self) -> dict[str, float]:
        """Name -> score: those of `overall`, "macro_f1" (mean over types), "f1_<type>" of each."""
        macro = float(self.f1.mean()) if self.types else 0.0
        type_scores = {
            f"f1_{name}": float(f1) for name, f1 in zip(self.types, self.f1, strict=True)
        }
        return {**self.overall, "macro_f1": macro, **type_scores}

    def __str__(self) -> str:
        """Returns a table with a row for each type and a row for all types."""
        columns = self.precision, self.recall, self.f1, self.support
        rows = [
            [name, *map(float, scores), int(support)]
            for name, *scores, support in zip(self.types, *columns, strict=True)
        ]
        rows.append(["all", *self.overall.values(), int(self.support.sum())])
        return text_table(["entity", "precision", "recall", "f1", "number"], rows)


def entity_report(
    labels: Sequence[Sequence[str]],
    predictions: Sequence[Sequence[str]],
    *,
    scheme: str | None = None,
) -> EntityReport:
    """Computes precision, recall and F1 of entities, for all sentences and for each type.

    The scores equal those of seqeval 1.2.2: its default mode (conlleval's rules) for `scheme=None`,
    `mode="strict"` for a scheme. seqeval's default mode does not support BILOU; here L counts as E
    and U as S.

    Args:
        labels: labels of each sentence, one per word.
        predictions: predicted labels of each sentence, one per word.
        scheme: "BIO", "BIOES" or "BILOU"; None = conlleval's lenient rules, see `entity_spans`.

    Raises:
        ValueError: unequal numbers of sentences or of words, or a label that is not of the scheme.

    Example:
        >>> report = entity_report([["B-person", "I-person", "O"]], [["B-person", "O", "B-place"]])
        >>> report.overall
        {'precision': 0.0, 'recall': 0.0, 'f1': 0.0}
        >>> print(entity_report([["B-place", "O"], ["B-place"]], [["B-place", "O"], ["O"]]))
        entity  precision  recall      f1  number
        place      1.0000  0.5000  0.6667       2
        all        1.0000  0.5000  0.6667       2
    """
    _check_lengths(labels, predictions)
    true_names, *true_spans = _spans(labels, scheme)
    predicted_names, *predicted_spans = _spans(predictions, scheme)
    types, of_type = np.unique(np.concatenate([true_names, predicted_names]), return_inverse=True)
    true_of, predicted_of = of_type[: len(true_names)], of_type[len(true_names) :]
    # Starts are unique: no two labelled (or predicted) entities begin at the same word.
    _, i, j = np.intersect1d(
        true_spans[0], predicted_spans[0], assume_unique=True, return_indices=True
    )
    is_same = (true_spans[1][i] == predicted_spans[1][j]) & (true_of[i] == predicted_of[j])
    right, predicted, support = (
        np.bincount(x, minlength=len(types)) for x in (true_of[i[is_same]], predicted_of, true_of)
    )
    precision, recall, f1 = _scores(right, predicted, support)
    overall = _scores(right.sum(), predicted.sum(), support.sum())
    names = ("precision", "recall", "f1")
    return EntityReport(
        types=types.tolist(),
        precision=precision,
        recall=recall,
        f1=f1,
        support=support,
        overall={name: float(score) for name, score in zip(names, overall, strict=True)},
    )


def _spans(
    sentences: Sequence[Sequence[str]], scheme: str | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the types of all entities (E,), and the words where they start and end (E,).

    `sentences` contain the label of each word. Words are numbered through all sentences, ends are
    exclusive, and `scheme` is that of `entity_spans`.
    """
    number: dict[str, int] = {}
    words = [number.setdefault(label, len(number)) for labels in sentences for label in labels]
    prefixes, types = _parsed(number, scheme)
    prefix = np.array(prefixes, "U1")[words]  # (W,)
    types, of_type = np.unique(np.array(types, str), return_inverse=True)
    of_type = of_type[words]
    # Whether a word continues the entity of the previous word.
    inside = np.zeros(len(words) + 1, bool)
    continues = np.isin(prefix[:-1], ["B", "I"]) & np.isin(prefix[1:], ["I", "E"])
    inside[1:-1] = continues & (of_type[1:] == of_type[:-1])
    inside[np.cumsum([0, *map(len, sentences)])] = False

    bounds = np.flatnonzero(~inside)
    starts, ends = bounds[:-1], bounds[1:]
    is_entity = prefix[starts] != "O" if scheme is None else np.isin(prefix[starts], ["B", "S"])
    if scheme in ("BIOES", "BILOU"):
        is_entity &= np.isin(prefix[ends - 1], ["E", "S"])
    return types[of_type[starts[is_entity]]], starts[is_entity], ends[is_entity]


def _parsed(names: Iterable[str], scheme: str | None) -> tuple[list[str], list[str]]:
    """Returns the prefix of each label, converted to BIOES ("O" outside), and its type.

    Raises ValueError for an unknown scheme, or a label that is not of the scheme.
    """
    if scheme is not None and scheme not in _PREFIXES:
        raise ValueError(
            f"scheme must be one of {', '.join(_PREFIXES)} or None. Received: {scheme!r}"
        )
    allowed = "BIESLU" if scheme is None else _PREFIXES[scheme]
    prefixes, types = [], []
    for name in names:
        match = _LABEL.fullmatch(name)
        if match is None or (match[2] and match[2] not in allowed):
            raise ValueError(
                f'An entity label{f" of {scheme}" if scheme else ""} must be "O", or one of '
                f'{", ".join(allowed)} and a type, as in "B-person". Received: {name!r}'
            )
        prefixes.append("O" if match[1] else _AS_BIOES.get(match[2], match[2]))
        types.append(match[3] or _NO_TYPE)
    return prefixes, types


def _scores(
    right: np.ndarray, predicted: np.ndarray, support: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns precision, recall and F1, 0 where the denominator is 0.

    The arguments are counts of entities: predicted correctly, predicted, and labelled (`support`).
    """
    precision = right / np.maximum(predicted, 1)
    recall = right / np.maximum(support, 1)
    total = precision + recall
    return precision, recall, 2 * precision * recall / np.where(total > 0, total, 1)


def _check_lengths(labels: Values, predictions: Values) -> None:
    """Raises ValueError unless both have as many sentences, with a label for each word."""
    if len(labels) != len(predictions):
        raise ValueError(
            f"labels and predictions must be of the same sentences. Received: {len(labels)} and "
            f"{len(predictions)} sentences"
        )
    for row, (true, predicted) in enumerate(zip(labels, predictions, strict=True)):
        if len(true) != len(predicted):
            raise ValueError(
                f"A sentence must have one label per word. Received: sentence number {row} with "
                f"{len(true)} labels and {len(predicted)} predictions"
            )
