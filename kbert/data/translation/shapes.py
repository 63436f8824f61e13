"""Plans the shapes of batches of pairs from the lengths alone: few shapes, little padding.

Pairs are points in a plane, source length by target length. The plane is divided in two where that
saves most padding. Then the part whose division saves most is divided, and so on, up to the maximum
number of shapes. The widths of a part are those of its longest source and its longest target. It
has as many rows as `max_tokens` allows. Pairs that do not fill a batch of their part move to the
next part that is at least as long on both sides, unless that costs more than empty rows. So hardly
any batch contains empty rows.

Shapes: N pairs, M batches of an epoch.
"""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from kbert.data.tables.bucketing import BUCKET


class Shape(NamedTuple):
    """Shape of a batch: widths of its sources and targets, and number of rows."""

    source: int
    target: int
    rows: int

    @property
    def tokens(self) -> int:
        """Number of tokens of both sides together, with padding."""
        return self.rows * (self.source + self.target)


@dataclasses.dataclass(frozen=True, kw_only=True)
class BatchPlan:
    """The batches of every epoch; each epoch assigns the pairs of a part to them at random.

    Args:
        shapes: shapes of the batches, short ones first.
        parts: (N,) int32, the part of the plane of each pair.
        layout: (N,) int32, positions in an epoch's order of the pairs (sorted by part, shuffled
            within it), arranged such that those of a batch are consecutive.
        batch_shapes: (M,) int32, index of each batch's shape.
        batch_pairs: (M,) int32, number of pairs in each batch; the rows after them are empty.
        pair_tokens: number of tokens of all pairs, both sides.
    """

    shapes: list[Shape]
    parts: np.ndarray
    layout: np.ndarray
    batch_shapes: np.ndarray
    batch_pairs: np.ndarray
    pair_tokens: int

    @property
    def tokens(self) -> int:
        """Number of tokens of an epoch's batches, both sides, with padding."""
        return sum(self.shapes[number].tokens for number in self.batch_shapes)

    @property
    def padding(self) -> float:
        """Share of padding in an epoch's batches, including empty rows."""
        return 1 - self.pair_tokens / self.tokens


def plan_batches(
    source_lengths: np.ndarray,
    target_lengths: np.ndarray,
    *,
    max_tokens: int,
    max_length: int,
    row_multiple: int = 1,
    num_shapes: int = 24,
) -> BatchPlan:
    """Plans the batches of pairs of these lengths.

    Args:
        source_lengths: (N,) number of tokens of each source, 1 to `max_length`.
        target_lengths: (N,) number of tokens of each target, 1 to `max_length`.
        max_tokens: maximum number of tokens on either side of a batch, with padding.
        max_length: maximum width of a batch.
        row_multiple: number of which the rows of every batch are a multiple.
        num_shapes: maximum number of different shapes.

    Example:
        >>> lengths = np.array([4] * 9 + [16] * 3)
        >>> plan = plan_batches(lengths, lengths, max_tokens=16, max_length=16)
        >>> plan.shapes
        [Shape(source=4, target=4, rows=4), Shape(source=16, target=16, rows=1)]
        >>> plan.batch_shapes.tolist(), plan.batch_pairs.tolist()
        ([0, 0, 1, 1, 1, 1], [4, 4, 1, 1, 1, 1])
    """
    lengths = np.stack([source_lengths, target_lengths], 1).astype(np.int64)  # (N, 2)
    widths = np.minimum(-(-lengths // BUCKET) * BUCKET, max_length)
    # Both widths as one number, which sorts ten times faster.
    keys, point_of_pair, counts = np.unique(
        widths[:, 0] * (max_length + 1) + widths[:, 1], return_inverse=True, return_counts=True
    )
    points = np.stack(np.divmod(keys, max_length + 1), 1)

    def rows(width: np.ndarray | int) -> np.ndarray | int:
        return max_tokens // width // row_multiple * row_multiple

    def cost(count: np.ndarray, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """Returns the cost in tokens of parts with `count` pairs of widths `first` and `second`.

        It is the tokens of the pairs, padded, plus about what half a batch of pairs costs more in
        the next wider part.
        """
        return count * (first + second) + rows(np.maximum(first, second)) * BUCKET

    cells = _cut(points, counts, num_shapes, cost)
    corners = [points[cell].max(0).tolist() for cell in cells]
    order = sorted(range(len(cells)), key=lambda i: (sum(corners[i]), corners[i]))
    part_of = np.empty(len(points), np.int32)
    for part, i in enumerate(order):
        part_of[cells[i]] = part
    corners = [corners[i] for i in order]
    shapes = [Shape(first, second, int(rows(max(first, second)))) for first, second in corners]
    parts = part_of[point_of_pair]
    return _fill(shapes, parts, int(lengths.sum()))


def _cut(
    points: np.ndarray, counts: np.ndarray, num_shapes: int, cost: Callable
) -> list[np.ndarray]:
    """Divides the plane into at most `num_shapes` parts; returns the indices of each part's points.

    `points` (P, 2) are the different (source width, target width), `counts` (P,) the number of
    pairs at each. `cost` is a function (pairs, source width, target width) -> tokens. A part is
    divided where that saves most, until no division saves tokens.
    """
    all_points = np.arange(len(points))
    cells = [(all_points, _best_cut(points, counts, all_points, cost))]
    while len(cells) < num_shapes:
        # Ties go to the first, so that the result is the same on every machine.
        best = max(range(len(cells)), key=lambda i: cells[i][1][0])
        cell, (saving, axis, last) = cells[best]
        if saving <= 0:
            break
        below = points[cell, axis] <= last
        halves = [cell[below], cell[~below]]
        cells[best : best + 1] = [(half, _best_cut(points, counts, half, cost)) for half in halves]
    return [cell for cell, _ in cells]


def _best_cut(
    points: np.ndarray, counts: np.ndarray, cell: np.ndarray, cost: Callable
) -> tuple[int, int, int]:
    """Returns the saving of a part's best cut in tokens, its axis, and the last width before it.

    `cell` has the indices of the part's points; the other arguments are those of `_cut`: points,
    pairs at each point, and the cost of a part. The axis is 0 for source widths, 1 for target
    widths. The saving is 0 if no cut saves tokens.
    """
    uncut_cost = cost(counts[cell].sum(), *points[cell].max(0))
    best = (0, 0, 0)
    for axis in (0, 1):
        sorted_ = cell[np.argsort(points[cell, axis], kind="stable")]
        widths, other_widths = points[sorted_, axis], points[sorted_, 1 - axis]
        pairs_before = np.cumsum(counts[sorted_])
        ends = np.flatnonzero(widths[1:] != widths[:-1])
        if not len(ends):
            continue
        widest_before = np.maximum.accumulate(other_widths)[ends]
        widest_behind = np.maximum.accumulate(other_widths[::-1])[::-1][ends + 1]
        saving = (
            uncut_cost
            - cost(pairs_before[ends], widths[ends], widest_before)
            - cost(pairs_before[-1] - pairs_before[ends], widths[-1], widest_behind)
        )
        best_index = int(np.argmax(saving))
        if saving[best_index] > best[0]:
            best = (int(saving[best_index]), axis, int(widths[ends[best_index]]))
    return best


def _fill(shapes: list[Shape], parts: np.ndarray, pair_tokens: int) -> BatchPlan:
    """Divides the pairs of each part into batches of the part's shape.

    `shapes` has one shape per part, `parts` (N,) the number of each pair's part, and `pair_tokens`
    is the number of tokens of all pairs. Pairs that do not fill a batch of their part move to the
    next part that is at least as wide on both sides. They stay if empty rows cost fewer tokens.
    """
    sizes = np.bincount(parts, minlength=len(shapes))
    begins = np.cumsum(sizes) - sizes
    # The positions of the pairs in each part's batches; those moved from shorter parts come first.
    positions = [[np.arange(b, b + n)] for b, n in zip(begins, sizes, strict=True)]
    layout, batch_shapes, batch_pairs = [], [], []
    for number, shape in enumerate(shapes):
        pairs = np.concatenate(positions[number])
        num_left = len(pairs) % shape.rows
        wider = next(
            (
                i
                for i, candidate in enumerate(shapes[number + 1 :], number + 1)
                if candidate.source >= shape.source and candidate.target >= shape.target
            ),
            None,
        )
        if num_left and wider is not None:
            candidate = shapes[wider]
            if num_left * (candidate.source + candidate.target) <= shape.tokens:
                positions[wider].insert(0, pairs[-num_left:])
                pairs, num_left = pairs[:-num_left], 0
        layout.append(pairs)
        full = len(pairs) // shape.rows
        batch_pairs += [shape.rows] * full + [num_left] * (num_left > 0)
        batch_shapes += [number] * (full + (num_left > 0))
    used = sorted(set(batch_shapes))  # all pairs of a part may have moved to another
    return BatchPlan(
        shapes=[shapes[number] for number in used],
        parts=parts,
        layout=np.concatenate(layout).astype(np.int32),
        batch_shapes=np.searchsorted(used, batch_shapes).astype(np.int32),
        batch_pairs=np.array(batch_pairs, np.int32),
        pair_tokens=pair_tokens,
    )
