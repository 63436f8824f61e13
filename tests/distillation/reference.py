"""The losses in NumPy and float64, written from the papers: pairs of numbers."""

import numpy as np


def softmax(x, axis=-1):
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def log_softmax(x):
    x = np.asarray(x, "float64")
    x = x - x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def pair(each, weights):
    weights = np.asarray(weights, "float64")
    return float((each * weights).sum()), float(weights.sum())


def divergence(student, teacher):
    """KL(teacher, student) of logits, in its plain form."""
    p = softmax(np.asarray(teacher, "float64"))
    return (p * (np.log(np.maximum(p, 1e-300)) - log_softmax(student))).sum(-1)


def soft_targets(student, teacher, weights, temperature=1.0):
    student, teacher = (np.asarray(x, "float64") / temperature for x in (student, teacher))
    return pair(temperature**2 * divergence(student, teacher), weights)


def soft_labels(student, teacher, weights, temperature=1.0):
    p, q = (1 / (1 + np.exp(-np.asarray(x, "float64") / temperature)) for x in (teacher, student))
    each = p * np.log(p / q) + (1 - p) * np.log((1 - p) / (1 - q))
    return pair(temperature**2 * each, weights)


def mean_squares(student, teacher, weights):
    each = (np.asarray(student, "float64") - np.asarray(teacher, "float64")) ** 2
    return pair(each.mean(-1), weights)


def cosine_distance(student, teacher, weights):
    student, teacher = (np.asarray(x, "float64") for x in (student, teacher))
    lengths = np.linalg.norm(student, axis=-1) * np.linalg.norm(teacher, axis=-1)
    return pair(1 - (student * teacher).sum(-1) / lengths, weights)


def score_squares(student, teacher, real):
    """Row by row, over the tokens that are there alone."""
    total = count = 0.0
    for ours, theirs, mask in zip(student, teacher, real, strict=True):
        there = np.flatnonzero(mask)
        each = (ours.astype("float64") - theirs.astype("float64"))[:, there][:, :, there] ** 2
        total += each.mean(0).sum()
        count += len(there) ** 2
    return total, count


def relation_divergence(student, teacher, real):
    """Likewise: no bias, padding is cut off."""
    total = count = 0.0
    for ours, theirs, mask in zip(student, teacher, real, strict=True):
        there = np.flatnonzero(mask)
        if len(there):
            cut = (x[:, there][:, :, there] for x in (ours, theirs))
            total += divergence(*cut).mean(0).sum()
        count += len(there)
    return total, count


def relation(vectors, num_heads):
    """(B, N, T, D) -> (B, `num_heads`, T, T)."""
    rows, heads, length, size = vectors.shape
    merged = vectors.transpose(0, 2, 1, 3).reshape(rows, length, num_heads, -1)
    cut = merged.transpose(0, 2, 1, 3)
    return cut @ cut.transpose(0, 1, 3, 2) / np.sqrt(heads * size / num_heads)


def agreement(student, teacher, weights):
    return pair(np.argmax(student, -1) == np.argmax(teacher, -1), weights)
