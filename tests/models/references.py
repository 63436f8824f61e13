"""Models of Hugging Face's library with random weights of sigma 0.15, and kbert's of the same."""

import keras
import numpy as np

from kbert.checkpoints import Checkpoint
from kbert.heads import (
    ChoiceHead,
    DiscriminatorHead,
    MaskedLMHead,
    SentenceHead,
    SpanHead,
    TokenHead,
)
from kbert.models import Encoder
from kbert.models.weights import set_arrays
from tests.harness import SIGMA, to_numpy

LABELS = ["good", "bad", "odd"]
VOCABULARY, POSITIONS = 90, 24
_BERT = {
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "type_vocab_size": 2,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
_ROBERTA = {**_BERT, "type_vocab_size": 1, "layer_norm_eps": 1e-5}
# model_type -> first part of the names of classes, and values of the config.
ARCHITECTURES = {
    "bert": ("Bert", {**_BERT, "max_position_embeddings": POSITIONS, "hidden_act": "gelu_new"}),
    "roberta": ("Roberta", {**_ROBERTA, "max_position_embeddings": POSITIONS + 2}),
    "xlm-roberta": (
        "XLMRoberta",
        {**_ROBERTA, "max_position_embeddings": POSITIONS + 6, "pad_token_id": 5},
    ),
    "albert": (
        "Albert",
        {
            **_BERT,
            "max_position_embeddings": POSITIONS,
            "embedding_size": 24,
            "num_hidden_groups": 2,
            "classifier_dropout_prob": 0.0,
        },
    ),
    "distilbert": (
        "DistilBert",
        {
            "dim": 64,
            "n_layers": 3,
            "n_heads": 4,
            "hidden_dim": 96,
            "max_position_embeddings": POSITIONS,
            "dropout": 0.0,
            "attention_dropout": 0.0,
        },
    ),
    "electra": (
        "Electra",
        {**_BERT, "max_position_embeddings": POSITIONS, "embedding_size": 24},
    ),
    # Rows of 16 tokens reach beyond the last bucket.
    "deberta-v2": (
        "DebertaV2",
        {
            **_BERT,
            "type_vocab_size": 0,
            "max_position_embeddings": POSITIONS,
            "relative_attention": True,
            "position_buckets": 8,
            "max_relative_positions": 12,
            "position_biased_input": False,
            "share_att_key": True,
            "norm_rel_ebd": "layer_norm",
            "pos_att_type": "p2c|c2p",
        },
    ),
    # A window of 4: rows of 16 tokens are read in blocks. No id of another vocabulary.
    "modernbert": (
        "ModernBert",
        {
            "hidden_size": 64,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "intermediate_size": 48,
            "max_position_embeddings": POSITIONS,
            "local_attention": 4,
            "classifier_pooling": "mean",
            "pad_token_id": 0,
            **dict.fromkeys(f"{x}_token_id" for x in ("bos", "eos", "cls", "sep")),
        },
    ),
}
_FINE_TUNED = (
    "ForSequenceClassification",
    "ForTokenClassification",
    "ForQuestionAnswering",
    "ForMultipleChoice",
)
# model_type -> ends of the names of its classes.
CLASSES = {
    name: ("Model", "ForMaskedLM", *others)
    for name, others in {
        **dict.fromkeys(ARCHITECTURES, _FINE_TUNED),
        "bert": (*_FINE_TUNED, "ForPreTraining", "ForNextSentencePrediction"),
        "albert": (*_FINE_TUNED, "ForPreTraining"),
        "electra": (*_FINE_TUNED, "ForPreTraining"),
        # Its heads for tokens and spans have a layer more than kbert's.
        "modernbert": ("ForSequenceClassification", "ForMultipleChoice"),
    }.items()
}


def make_reference(model_type: str, ending: str, **values):
    """A model of transformers.

    Args:
        model_type: a key of `ARCHITECTURES`.
        ending: of its class's name: "Model", "ForMaskedLM", ….
        **values: of the config, instead of those of `ARCHITECTURES`.
    """
    import transformers

    first, own = ARCHITECTURES[model_type]
    config_class = getattr(transformers, f"{first}Config")
    if ending in ("ForSequenceClassification", "ForTokenClassification"):
        values = {**values, "id2label": dict(enumerate(LABELS))}
    values = {"vocab_size": VOCABULARY, **own, **values}
    config = config_class(attn_implementation="eager", **values)
    return randomised(getattr(transformers, first + ending)(config).eval())


def randomised(model, seed: int = 0):
    """Every weight drawn anew; scales of normalisation around 1."""
    import torch

    torch.manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            scale = "norm" in name.lower() and name.endswith("weight")
            weight.normal_(1.0 if scale else 0.0, SIGMA)
    return model


def make_inputs(pad_id: int, segments: bool, padded: bool, batch=3, length=16):
    """Features of kbert, with the id of padding where there is padding and nowhere else."""
    rng = np.random.default_rng(0)
    columns = np.arange(length)
    lengths = np.linspace(length, length // 3, batch).astype(int)[:, None]
    mask = np.broadcast_to(columns < (lengths if padded else length), (batch, length))
    ids = rng.integers(pad_id + 1, VOCABULARY, (batch, length))
    features = {"token_ids": np.where(mask, ids, pad_id), "padding_mask": mask}
    if segments:
        features["segment_ids"] = np.broadcast_to(columns >= 5, (batch, length))
    return {name: np.ascontiguousarray(x, "int32") for name, x in features.items()}


def as_tensors(features: dict[str, np.ndarray]) -> dict:
    """Features under transformers' names."""
    import torch

    names = {
        "token_ids": "input_ids",
        "padding_mask": "attention_mask",
        "segment_ids": "token_type_ids",
    }
    return {names[name]: torch.tensor(array).long() for name, array in features.items()}


def run_reference(model, features: dict[str, np.ndarray]) -> dict:
    """Everything the model gives, as arrays by transformers' names."""
    import torch

    with torch.no_grad():
        out = model(**as_tensors(features), output_hidden_states=True, output_attentions=True)
    return {
        name: [part.numpy() for part in value] if isinstance(value, tuple) else value.numpy()
        for name, value in out.items()
    }


def run_kbert(checkpoint: Checkpoint, features: dict[str, np.ndarray]) -> dict:
    """The encoder's outputs, and the logits of each head that the checkpoint holds."""
    config = checkpoint.config
    encoder = Encoder(config)
    set_arrays(encoder, "encoder", checkpoint.part("encoder/"), checkpoint.source)
    out = encoder(features, return_hidden_states=True, return_attention=True)
    sequence, pooled = out["sequence"], out.get("pooled")
    batch, length = features["token_ids"].shape
    everywhere = np.broadcast_to(np.arange(length, dtype="int32"), (batch, length))
    labels = len(checkpoint.labels or ())
    calls = {
        "masked_lm": lambda: (MaskedLMHead(config, encoder.token_embedding), sequence, everywhere),
        "sentence": lambda: (SentenceHead(config), pooled),
        "discriminator": lambda: (DiscriminatorHead(config), sequence),
        "classifier": lambda: (SentenceHead(config, labels, name="classifier"), pooled),
        "tokens": lambda: (TokenHead(config, labels), sequence),
        "span": lambda: (SpanHead(config), sequence),
        "choice": lambda: (ChoiceHead(config), pooled),
    }
    for name, call in calls.items():
        arrays = checkpoint.part(f"{name}/")
        if arrays:
            head, *inputs = call()
            set_arrays(head, name, arrays, checkpoint.source)
            out[name] = head(*inputs)
    return to_numpy(out)


def gradients(loss, weights):
    """name -> d loss / d weight, dense, on whichever backend Keras runs."""
    backend = keras.backend.backend()
    if backend == "tensorflow":
        import tensorflow as tf

        with tf.GradientTape() as tape:
            value = loss()
        gradients = tape.gradient(value, [w.value for w in weights.values()])
        gradients = [tf.convert_to_tensor(gradient) for gradient in gradients]
    elif backend == "jax":
        import jax

        def stateless(values):
            pairs = list(zip(weights.values(), values, strict=True))
            with keras.StatelessScope(state_mapping=pairs):
                return loss()

        gradients = jax.jit(jax.grad(stateless))([w.value for w in weights.values()])
    else:
        loss().backward()
        gradients = [w.value.grad for w in weights.values()]
    return {name: to_numpy(g) for name, g in zip(weights, gradients, strict=True)}
