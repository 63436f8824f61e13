"""A biLM in NumPy, a word and a row at a time, after bilm/model.py of allenai/bilm-tf.

It shares nothing with kbert: it has its own characters, and reads the released format's own names.
"""

import json

import h5py
import numpy as np

OPTIONS = {
    "lstm": {
        "use_skip_connections": True,
        "projection_dim": 6,
        "cell_clip": 0.4,
        "proj_clip": 0.3,
        "dim": 10,
        "n_layers": 2,
    },
    "char_cnn": {
        "activation": "relu",
        "filters": [[1, 4], [2, 8], [3, 8]],
        "n_highway": 2,
        "embedding": {"dim": 4},
        "n_characters": 262,
        "max_characters_per_token": 12,
    },
}


def make_options(**changes) -> dict:
    """`OPTIONS` with other entries of "lstm" or "char_cnn"."""
    return {
        part: {key: changes.get(key, value) for key, value in entries.items()}
        for part, entries in OPTIONS.items()
    }


def make_weights(options, sigma=0.5, seed=0) -> dict[str, np.ndarray]:
    """Random weights under the names and in the shapes of the original's file."""
    lstm, cnn = options["lstm"], options["char_cnn"]
    width, units, size = lstm["projection_dim"], lstm["dim"], cnn["embedding"]["dim"]
    total = sum(number for _, number in cnn["filters"])
    shapes = {"char_embed": (261, size)}
    for i, (characters, number) in enumerate(cnn["filters"]):
        shapes[f"CNN/W_cnn_{i}"] = (1, characters, size, number)
        shapes[f"CNN/b_cnn_{i}"] = (number,)
    for i in range(cnn["n_highway"]):
        for part in ("carry", "transform"):
            shapes[f"CNN_high_{i}/W_{part}"] = (total, total)
            shapes[f"CNN_high_{i}/b_{part}"] = (total,)
    if total != width:
        shapes["CNN_proj/W_proj"] = (total, width)
        shapes["CNN_proj/b_proj"] = (width,)
    for direction in range(2):
        for layer in range(lstm["n_layers"]):
            cell = f"RNN_{direction}/RNN/MultiRNNCell/Cell{layer}/LSTMCell"
            shapes[f"{cell}/W_0"] = (2 * width, 4 * units)
            shapes[f"{cell}/B"] = (4 * units,)
            shapes[f"{cell}/W_P_0"] = (units, width)
    rng = np.random.default_rng(seed)
    return {name: rng.normal(0, sigma, shape).astype("float32") for name, shape in shapes.items()}


def write_folder(folder, options, weights, prefix="") -> None:
    """The two files, as a release has them."""
    (folder / f"{prefix}options.json").write_text(json.dumps(options))
    with h5py.File(folder / f"{prefix}weights.hdf5", "w") as file:
        for name, array in weights.items():
            file[name] = array


class NumpyBiLM:
    """Remembers the state of each row until `reset`."""

    def __init__(self, options, weights):
        self.lstm, self.cnn = options["lstm"], options["char_cnn"]
        self.weights = {name: np.asarray(array, "float64") for name, array in weights.items()}
        self.reset()

    def reset(self):
        self.states = {}

    def embed(self, rows):
        """Lists of words, a batch -> (L + 1, T, 2P) each, with the state of the batch before."""
        found = []
        for row, words in enumerate(rows):
            vectors = [self.word(word) for word in ("<S>", *words, "</S>")]
            forward = self.read(vectors, 0, row)
            backward = [layer[::-1] for layer in self.read(vectors[::-1], 1, row)]
            layers = [np.concatenate([vectors, vectors], -1)]
            layers += [np.concatenate(both, -1) for both in zip(forward, backward, strict=True)]
            found.append(np.stack(layers)[:, 1:-1])
        return found

    def word(self, word):
        """(P,) of a word by its characters."""
        longest = self.cnn["max_characters_per_token"]
        special = {"<S>": [256], "</S>": [257]}
        letters = special.get(word, list(word.encode())[: longest - 2])
        ids = [258, *letters, 259]
        x = self.weights["char_embed"][ids + [260] * (longest - len(ids))]
        act = {"relu": lambda z: np.maximum(z, 0), "tanh": np.tanh}[self.cnn["activation"]]
        found = []
        for i, (width, _) in enumerate(self.cnn["filters"]):
            kernel = self.weights[f"CNN/W_cnn_{i}"][0]
            windows = [x[k : k + width] for k in range(longest - width + 1)]
            answers = np.array([np.tensordot(window, kernel, 2) for window in windows])
            found.append(act((answers + self.weights[f"CNN/b_cnn_{i}"]).max(0)))
        x = np.concatenate(found)
        for i in range(self.cnn["n_highway"]):
            named = {
                part: self.weights[f"CNN_high_{i}/{part}"]
                for part in ("W_carry", "b_carry", "W_transform", "b_transform")
            }
            carry = _sigmoid(x @ named["W_carry"] + named["b_carry"])
            x = (
                carry * np.maximum(x @ named["W_transform"] + named["b_transform"], 0)
                + (1 - carry) * x
            )
        if "CNN_proj/W_proj" in self.weights:
            x = x @ self.weights["CNN_proj/W_proj"] + self.weights["CNN_proj/b_proj"]
        return x

    def read(self, vectors, direction, row=0):
        """Vectors in the order of reading -> a list of L arrays (T, P) in that order."""
        x, layers = np.array(vectors), []
        for layer in range(self.lstm["n_layers"]):
            outputs = []
            for vector in x:
                output = self._step(vector, direction, layer, row)
                residual = self.lstm["use_skip_connections"] and layer
                outputs.append(output + vector if residual else output)
            x = np.array(outputs)
            layers.append(x)
        return layers

    def _step(self, x, direction, layer, row):
        cell = f"RNN_{direction}/RNN/MultiRNNCell/Cell{layer}/LSTMCell"
        zeros = np.zeros(self.lstm["dim"]), np.zeros(self.lstm["projection_dim"])
        c, h = self.states.get((direction, layer, row), zeros)
        gates = np.concatenate([x, h]) @ self.weights[f"{cell}/W_0"] + self.weights[f"{cell}/B"]
        i, j, f, o = np.split(gates, 4)
        c = _clip(_sigmoid(f + 1) * c + _sigmoid(i) * np.tanh(j), self.lstm["cell_clip"])
        h = _clip(
            (_sigmoid(o) * np.tanh(c)) @ self.weights[f"{cell}/W_P_0"], self.lstm["proj_clip"]
        )
        self.states[direction, layer, row] = c, h
        return h


def _sigmoid(x):
    return 1 / (1 + np.exp(-x))


def _clip(x, bound):
    return x if bound is None else np.clip(x, -bound, bound)
