"""Writes keras-nlp/: tiny presets and weights as old versions of KerasNLP wrote them.

    python tests/golden/write_keras_nlp.py tests/golden/keras-nlp

In an environment of its own with tensorflow-cpu 2.15.1 and tensorflow-text 2.15.0, once with
keras-nlp 0.4.1 (model.h5), once with 0.8.2 and Keras 2.15, and once with 0.8.2 and Keras 3.0.5
(presets). Beside each lies `expected.npz`: ids, and what the library computed for them.
"""

import pathlib
import sys

import keras
import keras_nlp
import numpy as np

SIZES = {
    "num_layers": 2,
    "num_heads": 2,
    "hidden_dim": 8,
    "intermediate_dim": 16,
    "max_sequence_length": 10,
    "vocabulary_size": 12,
}
CLASSES = {
    "BertBackbone": {"num_segments": 2},
    "AlbertBackbone": {"embedding_dim": 4, "num_groups": 1},
    "DistilBertBackbone": {},
    "RobertaBackbone": {},
}
INPUTS = {
    "token_ids": np.array([[2, 5, 9, 11, 3], [4, 7, 3, 0, 0]], "int32"),
    "padding_mask": np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]], "int32"),
    "segment_ids": np.array([[0, 0, 1, 1, 1], [0, 0, 0, 0, 0]], "int32"),
}

target = pathlib.Path(sys.argv[1], f"{keras_nlp.__version__}-keras-{keras.__version__}")
random = np.random.default_rng(0)
is_old = keras_nlp.__version__ < "0.7"
names = CLASSES if is_old else ("BertBackbone", "RobertaBackbone")
for name in names:
    model = getattr(keras_nlp.models, name)(**SIZES, **CLASSES[name])
    for weight in model.weights:
        path = getattr(weight, "path", weight.name)
        mean = 1.0 if path.removesuffix(":0").endswith("gamma") else 0.0
        weight.assign(random.normal(mean, 0.15, weight.shape))
    taken = model.input if isinstance(model.input, dict) else {x.name: x for x in model.inputs}
    outputs = model({key: INPUTS[key] for key in taken})
    if not isinstance(outputs, dict):
        outputs = {"sequence_output": outputs}
    folder = target / name
    folder.mkdir(parents=True)
    if is_old:
        model.save_weights(str(folder / "model.h5"))
    else:
        from keras_nlp.src.utils.preset_utils import save_to_preset

        save_to_preset(model, str(folder))
    np.savez(folder / "expected.npz", **INPUTS, **{k: np.asarray(v) for k, v in outputs.items()})
