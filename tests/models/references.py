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
    TokenLogits,
)
from kbert.models import Encoder
from kbert.models.weights import set_arrays
from tests.harness import SIGMA, to_numpy

LABELS = ["good", "bad", "odd"]
VOCABULARY, POSITIONS = 90, 24
_BERT = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "type_vocab_size": 2,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
_ROBERTA = {**_BERT, "type_vocab_size": 1, "layer_norm_eps": 1e-5}
# model_type -> first part of the names of classes, and values of the config.
ARCHITECTURES = {
    "bert": (
        "Bert",
        {
            **_BERT,
            "num_hidden_layers": 4,
            "max_position_embeddings": POSITIONS,
            "hidden_act": "gelu_new",
        },
    ),
    "roberta": (
        "Roberta",
        {**_ROBERTA, "num_hidden_layers": 4, "max_position_embeddings": POSITIONS + 2},
    ),
    "xlm-roberta": (
        "XLMRoberta",
        {**_ROBERTA, "max_position_embeddings": POSITIONS + 6, "pad_token_id": 5},
    ),
    "albert": (
        "Albert",
        {
            **_BERT,
            "num_hidden_layers": 4,
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
            "n_layers": 2,
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
    # Rows of 16 tokens reach beyond the last distance.
    "deberta": (
        "Deberta",
        {
            **_BERT,
            "type_vocab_size": 0,
            "max_position_embeddings": POSITIONS,
            "relative_attention": True,
            "max_relative_positions": 12,
            "position_biased_input": False,
            "pos_att_type": "c2p|p2c",
        },
    ),
    "eurobert": (
        "EuroBert",
        {
            "hidden_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "intermediate_size": 48,
            "max_position_embeddings": POSITIONS,
            "rope_parameters": {"rope_type": "default", "rope_theta": 250_000.0},
            "pad_token_id": 0,
            **dict.fromkeys(f"{x}_token_id" for x in ("bos", "eos")),
        },
    ),
    "nomic_bert": ("NomicBert", {**_BERT, "max_position_embeddings": POSITIONS}),
    "roformer": (
        "RoFormer",
        {**_BERT, "embedding_size": 24, "max_position_embeddings": POSITIONS},
    ),
    "ernie": (
        "Ernie",
        {
            **_BERT,
            "max_position_embeddings": POSITIONS,
            "use_task_id": True,
            "task_type_vocab_size": 5,
        },
    ),
    # As below, with the window of the second layer twice as wide.
    "longformer": (
        "Longformer",
        {
            **_ROBERTA,
            "max_position_embeddings": POSITIONS + 2,
            "attention_window": [4, 8],
        },
    ),
    # The choice's head reads the first token only where the config says so.
    "convbert": (
        "ConvBert",
        {
            **_BERT,
            "max_position_embeddings": POSITIONS,
            "embedding_size": 24,
            "conv_kernel_size": 5,
            "num_groups": 2,
            "pad_token_id": 0,
            **{"summary_type": "first", "summary_use_proj": True, "summary_activation": "gelu"},
        },
    ),
    "squeezebert": (
        "SqueezeBert",
        {
            **_BERT,
            "max_position_embeddings": POSITIONS,
            "embedding_size": _BERT["hidden_size"],
            **dict.fromkeys(
                ("q_groups", "k_groups", "v_groups", "intermediate_groups", "output_groups"), 2
            ),
        },
    ),
    "mpnet": ("MPNet", {**_BERT, "max_position_embeddings": POSITIONS + 2}),
    "xlnet": (
        "XLNet",
        {"d_model": 64, "n_layer": 3, "n_head": 4, "d_inner": 96, "dropout": 0.0, "clamp_len": 8},
    ),
    "mobilebert": (
        "MobileBert",
        {
            **_BERT,
            "max_position_embeddings": POSITIONS,
            "embedding_size": 24,
            "intra_bottleneck_size": 32,
            "num_feedforward_networks": 3,
            "classifier_activation": False,
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
ARCHITECTURES["camembert"] = ("Camembert", ARCHITECTURES["roberta"][1])
# model_type -> ends of the names of its classes.
CLASSES = {
    name: ("Model", "ForMaskedLM", *others)
    for name, others in {
        **dict.fromkeys(ARCHITECTURES, _FINE_TUNED),
        **dict.fromkeys(
            ("bert", "ernie", "mobilebert"),
            (*_FINE_TUNED, "ForPreTraining", "ForNextSentencePrediction"),
        ),
        "albert": (*_FINE_TUNED, "ForPreTraining"),
        "electra": (*_FINE_TUNED, "ForPreTraining"),
        "eurobert": ("ForSequenceClassification", "ForTokenClassification"),
        "nomic_bert": ("ForSequenceClassification", "ForTokenClassification"),
        "deberta": _FINE_TUNED[:3],
        # Of choices it reads the last token.
        "roformer": _FINE_TUNED[:3],
    }.items()
}
# No masked language model, and of its two heads for answers the other bears the usual name.
CLASSES["xlnet"] = (
    *("Model", "LMHeadModel", "ForSequenceClassification", "ForTokenClassification"),
    *("ForQuestionAnsweringSimple", "ForMultipleChoice"),
)


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
            if not weight.requires_grad:  # RoFormer's sines and cosines
                continue
            scale = "norm" in name.lower() and name.endswith("weight")
            weight.normal_(1.0 if scale else 0.0, SIGMA)
    return model


def widen_queries(model):
    """IB-BERT of a MobileBERT of transformers, whose class cannot be it.

    Its queries and keys are made of whole hidden states, as its values are.
    """
    import torch

    for layer in model.base_model.encoder.layer:
        attention = layer.attention.self
        shape = model.config.hidden_size, attention.all_head_size
        attention.query, attention.key = torch.nn.Linear(*shape), torch.nn.Linear(*shape)
    return model


def make_inputs(pad_id: int, segments: bool, padded: bool, batch=3, length=16, left=False):
    """Features of kbert, with the id of padding where there is padding and nowhere else.

    On the left where a model reads the last token.
    """
    rng = np.random.default_rng(0)
    columns = np.arange(length)
    lengths = np.linspace(length, length // 3, batch).astype(int)[:, None]
    mask = np.broadcast_to(columns < (lengths if padded else length), (batch, length))
    mask = mask[:, ::-1] if left else mask
    ids = rng.integers(pad_id + 1, VOCABULARY, (batch, length))
    features = {"token_ids": np.where(mask, ids, pad_id), "padding_mask": mask}
    if segments:
        features["segment_ids"] = np.broadcast_to(columns >= 5, (batch, length))
    return {name: np.ascontiguousarray(x, "int32") for name, x in features.items()}


def with_global_tokens(features: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Features with global tokens: of each row others, and one of the padding."""
    rows, length = features["token_ids"].shape
    places = np.array([[0, length - 1, -1], [length // 3, 0, 1], [2, -1, -1], [1, 2, 0]], "int32")
    return {**features, "global_positions": places[:rows]}


def as_tensors(features: dict[str, np.ndarray]) -> dict:
    """Features under transformers' names."""
    import torch

    names = {
        "token_ids": "input_ids",
        "padding_mask": "attention_mask",
        "segment_ids": "token_type_ids",
        "global_positions": "global_attention_mask",
    }
    if "global_positions" in features:
        mask = np.zeros((len(features["token_ids"]), features["token_ids"].shape[1] + 1))
        np.put_along_axis(mask, features["global_positions"], 1, axis=1)  # -1 is the last column
        features = {**features, "global_positions": mask[:, :-1]}
    return {names[name]: torch.tensor(array).long() for name, array in features.items()}


def run_reference(model, features: dict[str, np.ndarray]) -> dict:
    """Everything the model gives, as arrays by transformers' names."""
    import torch

    with torch.no_grad():
        inputs = as_tensors(features)
        out = model(**inputs, output_hidden_states=True, output_attentions=True)
    found = {
        name: [part.numpy() for part in value] if isinstance(value, tuple) else value.numpy()
        for name, value in out.items()
    }
    if model.config.model_type == "longformer":
        places = (inputs.get("global_attention_mask", 0) * inputs["attention_mask"]).numpy()
        windowed = found["attentions"]
        of_global = found.pop("global_attentions", [None] * len(windowed))
        found["attentions"] = [
            whole_rows(*both, places) for both in zip(windowed, of_global, strict=True)
        ]
    return found


def whole_rows(windowed, of_global, places):
    """Longformer's attention (B, N, T, T) out of the form that transformers gives.

    Args:
        windowed: (B, N, T, x + w + 1): to the x global tokens of a row, then to those in the window
            of w around each token.
        of_global: (B, N, T or more, x), of global tokens; or None.
        places: (B, T), 1 for a global token.
    """
    batch, heads, length, width = windowed.shape
    x = 0 if of_global is None else of_global.shape[-1]
    reach = (width - x - 1) // 2
    whole = np.zeros((batch, heads, length, length))
    for i in range(length):
        for j in range(max(0, i - reach), min(length, i + reach + 1)):
            whole[:, :, i, j] += windowed[:, :, i, x + reach + j - i]
    for row in range(batch if x else 0):
        for number, place in enumerate(np.flatnonzero(places[row])):
            whole[row, :, :, place] += windowed[row, :, :, number]
        for number, place in enumerate(np.flatnonzero(places[row])):
            whole[row, :, place] = of_global[row, :, :length, number]
    return whole


def kbert_of(checkpoint: Checkpoint):
    """What `run_kbert` runs, made once for several features: of them to its outputs."""
    config = checkpoint.config
    encoder = Encoder(config)
    set_arrays(encoder, "encoder", checkpoint.part("encoder/"), checkpoint.source)
    labels = len(checkpoint.labels or ())
    makers = {
        "masked_lm": lambda: MaskedLMHead(config, encoder.token_embedding),
        "permutation_lm": lambda: TokenLogits(
            config, encoder.token_embedding, name="permutation_lm"
        ),
        "sentence": lambda: SentenceHead(config),
        "discriminator": lambda: DiscriminatorHead(config),
        "classifier": lambda: SentenceHead(config, labels, name="classifier"),
        "tokens": lambda: TokenHead(config, labels),
        "span": lambda: SpanHead(config),
        "choice": lambda: ChoiceHead(config),
    }
    heads = {}
    for name, make in makers.items():
        arrays = checkpoint.part(f"{name}/")
        if arrays:
            heads[name] = make()
            set_arrays(heads[name], name, arrays, checkpoint.source)

    def run(features):
        out = encoder(features, return_hidden_states=True, return_attention=True)
        batch, length = features["token_ids"].shape
        everywhere = np.broadcast_to(np.arange(length, dtype="int32"), (batch, length))
        for name, head in heads.items():
            read = "pooled" if name in ("sentence", "classifier", "choice") else "sequence"
            more = (everywhere,) if name == "masked_lm" else ()
            out[name] = head(out[read], *more)
        return to_numpy(out)

    return run


def run_kbert(checkpoint: Checkpoint, features: dict[str, np.ndarray]) -> dict:
    """The encoder's outputs, and the logits of each head that the checkpoint holds."""
    return kbert_of(checkpoint)(features)


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
