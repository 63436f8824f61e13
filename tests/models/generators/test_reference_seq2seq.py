"""Equality with Hugging Face's encoder-decoders, from folders it wrote and to folders it reads.

Random weights of sigma 0.15, ragged batches.
"""

import json

import numpy as np
import pytest
from keras import ops

from kbert import Seq2Seq, describe, family
from kbert.checkpoints.huggingface.huggingface import import_model
from kbert.decoding import Greedy, decode
from kbert.io.arrays import read_safetensors
from kbert.layers import Dropout
from kbert.models.weights import get_arrays, named_weights
from tests.harness import SIGMA, assert_close, assert_gradients_close, randomise, to_numpy
from tests.models.references import gradients

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

B, S, T, V, P = 3, 9, 14, 60, 20
LENGTHS = np.array([9, 5, 7])
_BART = {
    "vocab_size": V,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 3,
    **{f"{side}_attention_heads": 4 for side in ("encoder", "decoder")},
    **{f"{side}_ffn_dim": 48 for side in ("encoder", "decoder")},
    "max_position_embeddings": P,
    **dict.fromkeys(("dropout", "attention_dropout", "activation_dropout"), 0.0),
    **{"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 2},
}
_T5 = {
    "vocab_size": V,
    "d_model": 32,
    "d_kv": 6,
    "d_ff": 48,
    "num_layers": 2,
    "num_decoder_layers": 3,
    "num_heads": 4,
    "dropout_rate": 0.0,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 12,
    "decoder_start_token_id": 0,
}
_GATED = {**_T5, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
# Case -> names of config and class, and values of the config.
MODELS = {
    "bart": ("BartConfig", "BartForConditionalGeneration", _BART),
    "mbart": (
        "MBartConfig",
        "MBartForConditionalGeneration",
        {**_BART, "scale_embedding": True},
    ),
    "pegasus": (
        "PegasusConfig",
        "PegasusForConditionalGeneration",
        {**_BART, "scale_embedding": True, "activation_function": "relu"},
    ),
    "marian": (
        "MarianConfig",
        "MarianMTModel",
        {**_BART, "scale_embedding": True, "activation_function": "swish"},
    ),
    "marian-two-vocabularies": (
        "MarianConfig",
        "MarianMTModel",
        {**_BART, "decoder_vocab_size": V - 7, "share_encoder_decoder_embeddings": False},
    ),
    "t5": ("T5Config", "T5ForConditionalGeneration", _T5),
    "t5-v1_1": ("T5Config", "T5ForConditionalGeneration", _GATED),
    "mt5": ("MT5Config", "MT5ForConditionalGeneration", _GATED),
}
# The rest repeats what these show.
SOME = ["bart", "marian-two-vocabularies", "t5"]


def others_slow(names=SOME):
    return [pytest.param(x, marks=() if x in names else pytest.mark.slow) for x in MODELS]


def reference(case, folder=None, **changes):
    """A model of transformers, every weight drawn; of T5 1.1 and mT5 the output is not tied."""
    config_class, name, own = MODELS[case]
    config = getattr(transformers, config_class)(**{**own, **changes})
    model_class = getattr(transformers, name)
    model = model_class(config)
    torch.manual_seed(0)
    computed = "embed_positions" if config.model_type in ("marian", "pegasus") else "none"
    with torch.no_grad():
        for weight_name, weight in model.named_parameters():
            if computed not in weight_name:
                scale = "norm" in weight_name and weight_name.endswith("weight")
                weight.normal_(1.0 if scale else 0.0, SIGMA)
        if hasattr(model, "final_logits_bias") and config.model_type == "marian":
            model.final_logits_bias.normal_(0.0, 0.5)
    model.save_pretrained(folder)
    if case in ("t5-v1_1", "mt5"):  # only a file with two tables is read as such
        path = folder / "model.safetensors"
        arrays = {k: torch.tensor(v) for k, v in read_safetensors(path).items()}
        arrays["lm_head.weight"] = torch.randn(V, config.d_model) * SIGMA
        from safetensors.torch import save_file

        save_file(arrays, path, {"format": "pt"})
        content = json.loads((folder / "config.json").read_text())
        content["tie_word_embeddings"] = False  # as published
        content.pop("scale_decoder_outputs", None)
        (folder / "config.json").write_text(json.dumps(content))
    return model_class.from_pretrained(folder, attn_implementation="eager").eval()


def inputs(rows=V - 7):
    rng = np.random.default_rng(0)
    mask = (np.arange(S) < LENGTHS[:, None]).astype("int32")
    return {
        "encoder_token_ids": rng.integers(3, rows, (B, S)).astype("int32"),
        "encoder_padding_mask": mask,
        "decoder_token_ids": rng.integers(3, rows, (B, T)).astype("int32"),
    }


def run(model, batch, **options):
    ids, mask, targets = (torch.tensor(x).long() for x in batch.values())
    names = {"input_ids": ids, "attention_mask": mask, "decoder_input_ids": targets}
    return model(**names, **options)


def our_logits(seq2seq, batch):
    return seq2seq.logits(seq2seq(batch)["sequence"])


@pytest.mark.jax_slow
@pytest.mark.parametrize("case", MODELS)
def test_states_attention_and_logits_equal_hugging_face(case, tmp_path):
    model = reference(case, tmp_path)
    seq2seq = Seq2Seq.from_preset(tmp_path)
    with torch.no_grad():
        theirs = run(model, inputs(), output_hidden_states=True, output_attentions=True)
    out = seq2seq(inputs(), return_hidden_states=True, return_attention=True)
    ours = to_numpy({**out, "logits": seq2seq.logits(out["sequence"])})
    real = inputs()["encoder_padding_mask"] == 1
    pairs = {
        "hidden_states": theirs.decoder_hidden_states,
        "attention": theirs.decoder_attentions,
        "cross_attention": theirs.cross_attentions,
    }
    for name, expected in pairs.items():
        assert len(ours[name]) == len(expected)
        for i, (a, b) in enumerate(zip(ours[name], expected, strict=True)):
            assert_close(a, b.numpy(), 1e-4, f"{name} {i}")
    encoded = zip(ours["encoder_hidden_states"], theirs.encoder_hidden_states, strict=True)
    for i, (a, b) in enumerate(encoded):
        assert_close(a[real], b.numpy()[real], 1e-4, f"state {i} of the source")
    for a, b in zip(ours["encoder_attention"], theirs.encoder_attentions, strict=True):
        rows = real[:, None].repeat(a.shape[1], axis=1)
        assert_close(a[rows], b.numpy()[rows], 1e-4, "attention of the source")
    logits = theirs.logits.numpy()
    assert np.abs(logits).max() > 0.3
    assert_close(ours["logits"], logits, 1e-4, "logits")


@pytest.mark.tensorflow
@pytest.mark.parametrize(
    ("case", "changes"),
    [
        ("t5", {"dense_act_fn": "gelu_new"}),
        ("t5-v1_1", {"dense_act_fn": "gelu"}),
        ("t5-v1_1", {"feed_forward_proj": "relu", "is_gated_act": True}),
        ("mt5", {"feed_forward_proj": "gated-silu"}),
    ],
)
def test_keys_of_t5_s_activation_count_as_in_transformers(case, changes, tmp_path):
    reference(case, tmp_path, **changes)
    content = json.loads((tmp_path / "config.json").read_text())
    assert content.items() >= changes.items()
    model_class = getattr(transformers, MODELS[case][1])
    seq2seq = Seq2Seq.from_preset(tmp_path)
    seq2seq.save_to_preset(tmp_path / "ours", "huggingface")
    for folder in (tmp_path, tmp_path / "ours"):
        model = model_class.from_pretrained(folder).eval()
        with torch.no_grad():
            theirs = run(model, inputs()).logits.numpy()
        assert_close(to_numpy(our_logits(seq2seq, inputs())), theirs, 1e-4, f"logits of {folder}")


@pytest.mark.jax_slow
@pytest.mark.parametrize("case", others_slow())
def test_gradients_equal_hugging_face(case, tmp_path):
    model = reference(case, tmp_path)
    seq2seq = Seq2Seq.from_preset(tmp_path)
    batch = inputs()
    with torch.no_grad():
        shape = run(model, batch).logits.shape
    weight = np.random.default_rng(1).normal(size=shape).astype("float32")
    (run(model, batch).logits * torch.tensor(weight)).sum().backward()
    theirs = {
        name: np.zeros(p.shape, "float32") if p.grad is None else p.grad.numpy()
        for name, p in model.named_parameters()
        if "embed_positions" not in name or seq2seq.config.positions == "learned"
    }

    def our_loss():
        return ops.sum(our_logits(seq2seq, batch) * ops.convert_to_tensor(weight))

    trained = {
        name: weight
        for name, weight in named_weights(seq2seq, "seq2seq").items()
        if weight.trainable
    }
    content = json.loads((tmp_path / "config.json").read_text())
    expected = import_model(content, theirs, "the reference").part("seq2seq/")
    assert_gradients_close(gradients(our_loss, trained), expected)


@pytest.mark.tensorflow
@pytest.mark.parametrize("case", others_slow())
def test_greedy_texts_equal_hugging_face(case, tmp_path):
    """With KV caches; the relative biases go beyond their last bucket.

    The cache of transformers 5.24 has as many layers as a T5's encoder, so there is none for T5.
    """
    model = reference(case, tmp_path)
    seq2seq = Seq2Seq.from_preset(tmp_path)
    batch, new = inputs(), P - 2
    start = MODELS[case][2]["decoder_start_token_id"]
    settings = {"max_new_tokens": new, "do_sample": False, "num_beams": 1}
    settings |= {"eos_token_id": None, "forced_eos_token_id": None, "pad_token_id": 1}
    settings["use_cache"] = "t5" not in case
    theirs = model.generate(
        torch.tensor(batch["encoder_token_ids"]).long(),
        attention_mask=torch.tensor(batch["encoder_padding_mask"]).long(),
        **settings,
    )
    logits, cache = seq2seq.prefill(
        batch["encoder_token_ids"],
        batch["encoder_padding_mask"],
        new,
        np.full(B, start, "int32"),
    )
    found = decode(seq2seq.step, logits, cache, method=Greedy(), max_new_tokens=new, stop_ids=[])
    np.testing.assert_array_equal(to_numpy(found.token_ids)[:, 0], theirs.numpy()[:, 1:])


@pytest.mark.tensorflow
@pytest.mark.parametrize("case", MODELS)
def test_there_and_back_is_bit_equal(case, tmp_path):
    reference(case, tmp_path / "theirs")
    seq2seq = Seq2Seq.from_preset(tmp_path / "theirs")
    architecture = case.partition("-")[0]
    arrays = get_arrays(seq2seq, "seq2seq")
    if architecture == "mt5":  # the same function as T5, which it is written as
        architecture = "t5"
    seq2seq.save_to_preset(tmp_path / "ours", "huggingface")
    before, after = (
        read_safetensors(tmp_path / x / "model.safetensors") for x in ("theirs", "ours")
    )
    for name, array in before.items():
        if name != "final_logits_bias" and "embed_positions" not in name:
            np.testing.assert_array_equal(after[name], array, err_msg=name)
    content = json.loads((tmp_path / "ours" / "config.json").read_text())
    assert content["model_type"] == architecture
    again = Seq2Seq.from_preset(tmp_path / "ours")
    assert again.config == seq2seq.config
    for name, array in get_arrays(again, "seq2seq").items():
        np.testing.assert_array_equal(arrays[name], array, err_msg=name)


@pytest.mark.jax_slow
@pytest.mark.parametrize("case", others_slow([*SOME, "t5-v1_1"]))
def test_transformers_loads_what_is_written_and_gives_the_same(case, tmp_path):
    names = {"bart": "facebook/bart-base", "mbart": "facebook/mbart-large-cc25"}
    names |= {"pegasus": "google/pegasus-large", "marian": "Helsinki-NLP/opus-mt-en-de"}
    names |= {"t5": "t5-small", "t5-v1_1": "google/flan-t5-small", "mt5": "google/mt5-small"}
    config = family(names[case.removesuffix("-two-vocabularies")])
    sizes = {"vocabulary_size": V, "hidden_size": 32, "num_layers": 2, "num_heads": 4}
    small = config.replace(**sizes, intermediate_size=40, max_positions=P)
    if "two" in case:
        small = small.replace(target_vocabulary_size=V - 7)
    seq2seq = Seq2Seq(small)
    randomise(seq2seq)
    seq2seq.save_to_preset(tmp_path, format="huggingface")
    if small.output_bias:  # Marian's default for padding is an id of its own vocabulary
        content = json.loads((tmp_path / "config.json").read_text())
        content |= {f"{x}_token_id": 1 for x in ("pad", "decoder_start")}
        (tmp_path / "config.json").write_text(json.dumps(content))
    model, report = transformers.AutoModelForSeq2SeqLM.from_pretrained(
        tmp_path, output_loading_info=True
    )
    missing = {x for x in report.pop("missing_keys") if "embed_positions" not in x}
    assert not missing
    assert not any(report.values()), report
    with torch.no_grad():
        theirs = run(model.eval(), inputs()).logits.numpy()
    assert_close(to_numpy(our_logits(seq2seq, inputs())), theirs, 1e-4, "logits")


@pytest.mark.tensorflow  # numbers: another backend would say the same
@pytest.mark.parametrize(
    ("name", "parameters", "unused"),
    [
        ("facebook/bart-base", 139_420_416, 4 * 768),
        ("facebook/bart-large", 406_291_456, 4 * 1024),
        ("google-t5/t5-small", 60_506_624, 0),
        ("google/flan-t5-small", 76_961_152, 0),
        ("google/mt5-small", 300_176_768, 0),
        ("google/t5-v1_1-base", 247_577_856, 0),
    ],
)
def test_parameters_of_the_published_sizes(name, parameters, unused):
    description = describe(name)
    assert description.parameters == parameters
    assert description.held_parameters == parameters - unused
    config = description.config
    heads = {"num_heads": 2, "head_size": 3 if config.head_size else None}
    small = config.replace(
        **heads, num_layers=1, hidden_size=8, intermediate_size=5, vocabulary_size=9,
        max_positions=4,
    )  # fmt: skip
    assert Seq2Seq(small).count_params() == small.count_parameters()


@pytest.mark.tensorflow
def test_t5_s_one_rate_is_at_all_places_of_the_original():
    sizes = {"vocabulary_size": V, "hidden_size": 16, "num_layers": 1, "num_heads": 2}
    model = Seq2Seq(family("t5-small").replace(**sizes, intermediate_size=8))
    rates = [x.rate for x in model._flatten_layers() if isinstance(x, Dropout)]
    # Each side's own, and of each block its own, in its attentions and in its feed-forward part.
    assert rates == [0.1] * (1 + 3 + 4)
    randomise(model)
    sequence = to_numpy(model(inputs(), training=True)["sequence"])
    # Of 3 x 14 x 16 numbers behind the last norm: a tenth, and less than five deviations from it.
    assert abs((sequence == 0).mean() - 0.1) < 5 * (0.1 * 0.9 / sequence.size) ** 0.5
