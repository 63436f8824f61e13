"""Loss surfaces: the loss along the line, or on the plane, between weights of a model.

Sources: Hao et al. 2019, "Visualizing and Understanding the Effectiveness of BERT",
https://arxiv.org/abs/1908.05620 (the line from pretrained to fine-tuned weights, the plane through
two fine-tuned models, the path of training); Li et al. 2018, "Visualizing the Loss Landscape of
Neural Nets", https://arxiv.org/abs/1712.09913 (filter normalisation, section 4; paths, section 7).

Shapes: N weights, A and B points of the axes, P points of a path.
"""

import dataclasses
import itertools
import math
import numbers
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from kbert.core.types import Arrays, PathLike
from kbert.io.arrays import check_arrays
from kbert.io.paths import Path
from kbert.io.progress import Progress
from kbert.training.run.checkpoints import WEIGHTS, Checkpoints, path_below, read_variables


@dataclasses.dataclass(frozen=True)
class LossSurface:
    """Losses at start + alpha · (end - start) + beta · second direction.

    Attributes:
        alphas: (A,), coordinates of the first direction: 0 is the start, 1 the end.
        betas: (B,), coordinates of the second direction; None on a line.
        losses: (A, B), or (A,) on a line; NaN or infinity where the model diverges.
        path: (P, 2), the coordinates (alpha, beta) of a run's checkpoints in the plane, in order;
            (P, 1) on a line.
    """

    alphas: np.ndarray
    betas: np.ndarray | None
    losses: np.ndarray
    path: np.ndarray


def copy_weights(model: keras.Model) -> dict[str, np.ndarray]:
    """Returns path -> copy, for each floating-point weight of a task or another Keras model.

    Example:
        >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, name="dense")])
        >>> {path: array.shape for path, array in copy_weights(model).items()}
        {'dense/kernel': (2, 1), 'dense/bias': (1,)}
    """
    return read_variables(_variables(model))


def loss_surface(
    model: keras.Model,
    data: Any,
    labels: Any = None,
    *,
    start: Arrays | keras.Model,
    end: Arrays | keras.Model | None = None,
    second: str | Arrays | keras.Model | None = None,
    alphas: Any = (-0.5, 1.5, 21),
    betas: Any = (-1.0, 1.0, 11),
    path: PathLike | Sequence[Arrays] = (),
    seed: int = 0,
    verbose: str | int = "auto",
    **options: Any,
) -> LossSurface:
    """Measures the loss on the line between two weight vectors, or on a plane through them.

    The losses are those of `model.evaluate`, without dropout. The model has its own weights again
    afterwards, bit for bit, also after an error. Memory holds a few copies of the weights.

    Args:
        model: a task, or another compiled Keras model.
        data: data of `model.evaluate`.
        labels: labels of the data, if it has none.
        start: weights at (0, 0), such as those before fine-tuning: what `copy_weights` returned, or
            another model of the same layout.
        end: weights at (1, 0); None = the model's.
        second: second direction of a plane: weights at (0, 1), such as those of another fine-tuned
            model; "random", a filter-normalised direction (`random_direction`); or "path", the
            largest component of the path that is orthogonal to the first direction, as long as
            that direction. None = a line.
        alphas: first, last and number of the first coordinates; not the coordinates themselves.
        betas: first, last and number of the second coordinates.
        path: `model_dir` of a run, whose checkpoints are projected on the plane (keep them with
            `fit(keep_checkpoints=…)`); or a sequence of weights.
        seed: seed of the random direction.
        verbose: progress bar: 1 = always, 0 = never, "auto" = if the work takes over 2 seconds.
        **options: further arguments of `model.evaluate`, such as `batch_size`.

    Raises:
        ValueError: weights do not fit the model or are equal, `second` has an unknown name, a
            direction is parallel to the first, `alphas` or `betas` are not such numbers, or a path
            has no checkpoints.

    Example:
        >>> inputs, model = np.eye(2, dtype="float32"), keras.Sequential([keras.layers.Dense(1)])
        >>> model.compile(loss="mse")
        >>> model.build((None, 2))
        >>> start = {path: np.zeros_like(array) for path, array in copy_weights(model).items()}
        >>> end = {path: np.ones_like(array) for path, array in start.items()}
        >>> surface = loss_surface(model, inputs, np.ones((2, 1)), start=start, end=end,
        ...                        alphas=(0, 1, 3))  # predicts 2 alpha for 1
        >>> surface.losses.tolist()
        [1.0, 0.0, 1.0]
    """
    lines = {"alphas": alphas} if second is None else {"alphas": alphas, "betas": betas}
    grid = [_coordinates(name, line) for name, line in lines.items()]
    variables = _variables(model)
    own = read_variables(variables)
    origin = _vector(_arrays(start), variables, "start")
    end = own if end is None else _arrays(end)
    along = _vector(end, variables, "end") - origin
    if not along.any():
        raise ValueError("`start` and `end` must differ. Received: the same weights")
    points = list(_points(path, variables, origin))
    if second is None:
        across = None
    elif not isinstance(second, str):
        across = _vector(_arrays(second), variables, "second") - origin
    elif second == "random":
        across = _vector(random_direction(end, seed), variables, "the random direction")
    elif second == "path" and points:
        across = _across_path(points, along)
    else:
        raise ValueError(
            'second must be "random", "path" (with a `path`), weights or a model. Received: '
            f"{second!r} and {len(points)} points of a path"
        )
    axes = np.stack([along] if across is None else [along, across])
    gram = (axes @ axes.T).astype(np.float64)
    if across is not None and np.linalg.det(gram) <= 1e-6 * gram[0, 0] * gram[1, 1]:
        raise ValueError(
            "The second direction must not be zero or parallel to the first. Received: products "
            f"{gram.tolist()}"
        )
    count = int(np.prod([*map(len, grid)]))
    losses = []
    try:
        with Progress("loss surface", count, " points", verbose=verbose) as bar:
            for coordinates in itertools.product(*grid):
                _assign(variables, origin + np.array(coordinates, np.float32) @ axes)
                losses.append(_loss(model, data, labels, options))
                bar.show(len(losses))
    finally:
        for name, variable in variables.items():
            variable.assign(own[name].reshape(variable.shape))
    coordinates = [np.linalg.solve(gram, axes @ point) for point in points]
    return LossSurface(
        alphas=grid[0],
        betas=None if across is None else grid[1],
        losses=np.reshape(losses, [*map(len, grid)]),
        path=np.reshape(coordinates, (-1, len(axes))),
    )


def random_direction(weights: Arrays, seed: int = 0) -> dict[str, np.ndarray]:
    """Returns a random direction whose filters are as long as those of the weights.

    A filter has the weights of one unit: a column of a matrix, over all axes but the last. Biases
    and the scales of norms have none, and do not move. (Li et al. 2018, section 4.)

    Args:
        weights: path -> array, as `copy_weights` returns them.
        seed: seed of the direction.

    Example:
        >>> direction = random_direction({"kernel": np.ones((4, 3)), "bias": np.ones(3)})
        >>> np.linalg.norm(direction["kernel"], axis=0).round(4).tolist()
        [2.0, 2.0, 2.0]
    """
    rng = np.random.default_rng(seed)
    direction = {}
    for name, array in weights.items():
        direction[name] = np.zeros_like(array)
        if array.ndim > 1:
            drawn = rng.standard_normal(array.shape, np.float32)
            filters = array.reshape(-1, array.shape[-1]), drawn.reshape(-1, array.shape[-1])
            lengths = [np.linalg.norm(x, axis=0) for x in filters]
            direction[name] = drawn * (lengths[0] / lengths[1])
    return direction


def _variables(model: keras.Model) -> dict[str, keras.Variable]:
    """Returns path below the model -> floating-point weight; ValueError if two paths are equal."""
    floats = [x for x in model.weights if keras.backend.is_float_dtype(x.dtype)]
    variables = {path_below(variable, model.name): variable for variable in floats}
    if len(variables) < len(floats) or not floats:
        raise ValueError(
            "A loss surface requires a built model whose weights have distinct paths. Received: "
            f"{len(floats)} weights, {len(variables)} paths"
        )
    return variables


def _arrays(weights: Arrays | keras.Model) -> Arrays:
    return copy_weights(weights) if isinstance(weights, keras.Model) else weights


def _vector(arrays: Arrays, variables: Mapping[str, keras.Variable], source: str) -> np.ndarray:
    """Returns all weights as one vector (N,) float32, in the order of the variables.

    Args:
        arrays: path -> array.
        variables: path -> variable of the model that is measured.
        source: origin of the weights, for messages.
    """
    shapes = {name: tuple(variable.shape) or (1,) for name, variable in variables.items()}
    check_arrays(shapes, arrays, source)
    return np.concatenate([np.ravel(arrays[name]).astype(np.float32) for name in variables])


def _coordinates(name: str, line: Any) -> np.ndarray:
    """Returns the coordinates between the first and the last one, and checks them.

    Args:
        name: name of the argument, for the message.
        line: first, last and number of the coordinates.
    """
    values = list(line) if isinstance(line, Iterable) else []
    # One coordinate between two different ones is rather a list of three coordinates.
    if (
        len(values) != 3
        or not all(isinstance(x, numbers.Real) and math.isfinite(x) for x in values[:2])
        or isinstance(values[2], bool)
        or not isinstance(values[2], int | np.integer)
        or values[2] < (1 if values[0] == values[1] else 2)
    ):
        raise ValueError(
            f"{name} must be the first and the last coordinate and their number, at least 2 (1 if "
            f"both are equal), such as (-0.5, 1.5, 21). Received: {name}={line!r}"
        )
    return np.linspace(*values)


def _assign(variables: Mapping[str, keras.Variable], vector: np.ndarray) -> None:
    """Sets the variables to the parts of a vector (N,)."""
    sizes = [int(np.prod(variable.shape)) for variable in variables.values()]
    parts = np.split(vector, np.cumsum(sizes)[:-1])
    for variable, part in zip(variables.values(), parts, strict=True):
        variable.assign(ops.reshape(part, variable.shape))


def _points(
    path: PathLike | Sequence[Arrays], variables: Mapping[str, keras.Variable], origin: np.ndarray
) -> Iterator[np.ndarray]:
    """Yields each point of a path as a vector (N,) from the origin.

    Args:
        path: folder of a run, or a sequence of weights.
        variables: path -> variable of the model.
        origin: the start, (N,).
    """
    if isinstance(path, Sequence) and not isinstance(path, str):
        steps: Any = [(f"point {number} of the path", x) for number, x in enumerate(path)]
    else:
        checkpoints = Checkpoints(Path(path) / "checkpoints")
        if not checkpoints.steps():
            raise ValueError(f"A run must have checkpoints. Received: {path}, without any")
        steps = (
            (f"step {step} of {path}", _weights_of(checkpoints.read(step), variables))
            for step in checkpoints.steps()
        )
    for source, weights in steps:
        yield _vector(weights, variables, source) - origin


def _weights_of(arrays: Arrays, variables: Mapping[str, keras.Variable]) -> dict[str, np.ndarray]:
    """Returns the weights of a checkpoint by their paths, without those that are integers."""
    names = {name.removeprefix(WEIGHTS): name for name in arrays if name.startswith(WEIGHTS)}
    return {
        path: arrays[name]
        for path, name in names.items()
        if path in variables or arrays[name].dtype.kind not in "iu"
    }


def _across_path(points: Sequence[np.ndarray], along: np.ndarray) -> np.ndarray:
    """Returns the first principal component of a path orthogonal to `along`, of equal length.

    Args:
        points: points of the path, (N,) each, from the start.
        along: the first direction, (N,).
    """
    length = np.linalg.norm(along)
    unit = along / length
    rests = np.stack([point - (unit @ point) * unit for point in points])
    # The largest eigenvector of the (P, P) products gives that of the (N, N) covariance.
    component = np.linalg.eigh(rests @ rests.T)[1][:, -1] @ rests
    return component * (length / max(float(np.linalg.norm(component)), 1e-30))


def _loss(model: keras.Model, data: Any, labels: Any, options: Mapping[str, Any]) -> float:
    """Returns the loss of `model.evaluate`, a dict, a list with the loss first, or a number."""
    values = model.evaluate(data, labels, verbose=0, **options)
    return float(values["loss"] if isinstance(values, Mapping) else np.ravel(values)[0])
