"""Writes tests/golden/transformers-4: files of transformers' TensorFlow and Flax classes.

Version 5 has neither, so this runs in an environment of its own:

  pip install transformers==4.46.3 tensorflow-cpu==2.17.1 tf-keras==2.17.0 flax==0.8.5 \
      jax==0.4.34 jaxlib==0.4.34 'numpy<2'
  python tests/golden/write_transformers4.py tests/golden/transformers-4

Each folder holds a config, weights of sigma 0.15, and in `expected.npz` ids and what the class
that wrote the weights computes of them.
"""

import os
import pathlib
import sys

os.environ["TF_USE_LEGACY_KERAS"] = "1"

import numpy as np

SIZES = {
    "vocab_size": 20,
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 12,
    "max_position_embeddings": 10,
}
OF_GPT = {"vocab_size": 20, "n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": 10}
MODELS = {
    "bert": ("BertConfig", "BertForPreTraining", SIZES),
    "albert": ("AlbertConfig", "AlbertForMaskedLM", {**SIZES, "embedding_size": 4}),
    "roberta": ("RobertaConfig", "RobertaForSequenceClassification", {**SIZES, "num_labels": 3}),
    "gpt2": ("GPT2Config", "GPT2LMHeadModel", OF_GPT),
    "electra": ("ElectraConfig", "ElectraForMaskedLM", {**SIZES, "embedding_size": 4}),
}


def main(target: pathlib.Path) -> None:
    import jax
    import tensorflow as tf
    import transformers

    rng = np.random.default_rng(0)
    ids = rng.integers(5, 20, (2, 7))
    for name, (config_class, model_class, sizes) in MODELS.items():
        config = getattr(transformers, config_class)(**sizes)
        model = getattr(transformers, f"TF{model_class}")(config)
        model(tf.constant(ids))
        for weight in model.weights:
            if weight.dtype.is_floating:
                weight.assign(rng.normal(0, 0.15, weight.shape))
        # Where none are given, Flax's ELECTRA takes 1 for them, and all other classes 0.
        given = {"token_type_ids": np.zeros_like(ids)} if name == "electra" else {}
        save(target / "tensorflow" / name, model, ids, model(tf.constant(ids)))
        model = getattr(transformers, f"Flax{model_class}")(config)
        model.params = jax.tree_util.tree_map(
            lambda x: rng.normal(0, 0.15, x.shape).astype("float32"), model.params
        )
        save(target / "flax" / name, model, ids, model(ids, **given))


def save(folder: pathlib.Path, model: object, ids: np.ndarray, outputs: dict) -> None:
    model.save_pretrained(folder)
    for file in folder.glob("generation_config.json"):
        file.unlink()
    found = {key: np.asarray(x) for key, x in outputs.items() if hasattr(x, "shape")}
    np.savez(folder / "expected.npz", ids=ids, **found)


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
