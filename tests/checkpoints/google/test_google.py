"""Google's TF1 releases, written here with the variable names of the original code."""

import json
import re

import numpy as np
import pytest
import tensorflow as tf

from kbert.checkpoints import read_checkpoint
from kbert.checkpoints.google.names import albert_rules, bert_rules, electra_rules
from kbert.checkpoints.renames import write_arrays
from kbert.models import Encoder
from kbert.tasks import Task, TextClassifier
from kbert.tokenizers import WordPieceTokenizer
from tests.harness import SIGMA, assert_close, tiny_inputs, to_numpy

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

# The other form of GELU or another epsilon would be 1e-4 apart on models as small as these.
CLOSE = 2e-5

SIZES = {
    "vocab_size": 50,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 24,
    "type_vocab_size": 2,
}
BERT = {**SIZES, "hidden_act": "gelu", "initializer_range": 0.02}
BERT |= {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
ALBERT = {**BERT, "num_hidden_layers": 4, "embedding_size": 8, "num_hidden_groups": 2}
ALBERT |= {"hidden_dropout_prob": 0, "attention_probs_dropout_prob": 0, "inner_group_num": 1}
ALBERT |= {"net_structure_type": 0, "gap_size": 0, "num_memory_blocks": 0, "down_scale_factor": 1}
ELECTRA = {**SIZES, "embedding_size": 8}
GENERATOR = {**ELECTRA, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 48}


def random_model(kind, hidden_act, content, **more):
    """A model of transformers with the sizes of a Google config and random weights."""
    own = {k: v for k, v in content.items() if k in {*SIZES, "embedding_size", "num_hidden_groups"}}
    config = getattr(transformers, kind.split("For")[0] + "Config")(
        **own, hidden_act=hidden_act, attn_implementation="eager", **more
    )
    torch.manual_seed(0)
    model = getattr(transformers, kind)(config).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            norm = "layernorm" in name.lower().replace("_", "")
            weight.normal_(1.0 if norm and name.endswith("weight") else 0.0, SIGMA)
    return model


def google_name(name):
    """PyTorch's name of a parameter -> the original code's, as the conversion scripts know it."""
    for pattern, there in (
        (r"^albert\.", "bert."),
        (r"^sop_classifier\.classifier\.weight", "cls/seq_relationship/output_weights"),
        (r"^sop_classifier\.classifier\.bias", "cls/seq_relationship/output_bias"),
        (r"^cls\.seq_relationship\.weight", "cls/seq_relationship/output_weights"),
        (r"^cls\.seq_relationship\.bias", "cls/seq_relationship/output_bias"),
        (r"^predictions\.(dense|LayerNorm)", r"cls/predictions/transform/\1"),
        (r"predictions\.bias$", "predictions/output_bias"),
        (r"^predictions", "cls/predictions"),
        (r"^discriminator_predictions\.dense_prediction", "discriminator_predictions/dense_1"),
        (r"^generator_lm_head\.bias", "generator_predictions/output_bias"),
        (
            r"albert_layer_groups\.(\d+)\.albert_layers\.(\d+)",
            r"transformer/group_\1/inner_group_\2",
        ),
        (r"attention\.(query|key|value)\.", r"attention_1.self.\1."),
        (r"(inner_group_\d+)\.attention\.dense", r"\1.attention_1.output.dense"),
        (r"(inner_group_\d+)\.attention\.LayerNorm", r"\1.LayerNorm"),
        (r"full_layer_layer_norm", "LayerNorm_1"),
        (r"\.ffn\.", ".ffn_1.intermediate.dense."),
        (r"\.ffn_output\.", ".ffn_1.intermediate.output.dense."),
        (r"bert\.pooler\.(weight|bias)", r"bert.pooler.dense.\1"),
        (r"\.layer\.(\d+)\.", r".layer_\1."),
        (r"_embeddings\.weight$", "_embeddings"),
        (r"(LayerNorm\w*)\.weight$", r"\1/gamma"),
        (r"(LayerNorm\w*)\.bias$", r"\1/beta"),
        (r"\.weight$", "/kernel"),
        (r"\.", "/"),
    ):
        name = re.sub(pattern, there, name)
    return name


def google_tensors(model):
    tensors = {}
    for name, weight in model.named_parameters():
        name, array = google_name(name), weight.detach().numpy()
        tensors[name] = array.T if name.endswith("/kernel") else array
    return tensors


def write_release(folder, tensors, config_file=None, content=None, prefix="bert_model.ckpt"):
    """`config_file` and a checkpoint as `tf.train.Saver` writes it."""
    folder.mkdir(exist_ok=True)
    if config_file:
        (folder / config_file).write_text(json.dumps(content))
    tf.raw_ops.SaveV2(
        prefix=str(folder / prefix),
        tensor_names=list(tensors),
        shape_and_slices=[""] * len(tensors),
        tensors=[tf.constant(array) for array in tensors.values()],
    )
    return folder


def slots(tensors):
    """What the optimizers leave in a checkpoint of a run."""
    found = {f"{name}/adam_{x}": np.zeros_like(a) for name, a in tensors.items() for x in "mv"}
    return {**found, "global_step": np.array(7, "int64")}


def assert_same_outputs(encoder, model):
    """Of our encoder and a base model of transformers: outputs, hidden states, attention."""
    inputs = tiny_inputs(encoder.config)
    ours = to_numpy(encoder(inputs, return_hidden_states=True, return_attention=True))
    with torch.no_grad():
        theirs = model(
            input_ids=torch.tensor(inputs["token_ids"]),
            token_type_ids=torch.tensor(inputs["segment_ids"]),
            attention_mask=torch.tensor(inputs["padding_mask"]),
            output_hidden_states=True,
            output_attentions=True,
        )
    real = inputs["padding_mask"] == 1
    assert len(ours["hidden_states"]) == len(theirs.hidden_states)
    for a, b in zip(ours["hidden_states"], theirs.hidden_states, strict=True):
        assert_close(a[real], b.numpy()[real], CLOSE)
    for a, b in zip(ours["attention"], theirs.attentions, strict=True):
        assert_close(a, b, CLOSE)
    if getattr(theirs, "pooler_output", None) is not None:
        assert_close(ours["pooled"], theirs.pooler_output, CLOSE)


@pytest.fixture(scope="module")
def bert():
    return random_model("BertForPreTraining", "gelu_new", BERT)


@pytest.fixture
def release(bert, tmp_path):
    """A folder like uncased_L-12_H-768_A-12."""
    return write_release(tmp_path / "bert", google_tensors(bert), "bert_config.json", BERT)


def test_bert(bert, tmp_path):
    tensors = google_tensors(bert)
    assert "bert/encoder/layer_1/attention/output/LayerNorm/gamma" in tensors
    assert tensors["cls/seq_relationship/output_weights"].shape == (2, 32)
    folder = write_release(
        tmp_path, tensors | slots(tensors), "bert_config.json", BERT, "bert_model.ckpt"
    )
    assert_same_outputs(Encoder.from_preset(folder), bert.bert)
    checkpoint = read_checkpoint(folder)
    assert sorted(checkpoint.left) == sorted(slots(tensors))
    assert checkpoint.task == {"kind": "pretrain", "next_sentence": True}
    arrays = checkpoint.arrays
    heads = {name for name in arrays if not name.startswith("encoder/")}
    norm = {f"masked_lm/norm/{x}" for x in ("gamma", "beta")}
    dense = {
        f"{x}/{y}" for x in ("masked_lm/transform", "sentence/dense") for y in ("kernel", "bias")
    }
    assert heads == {"masked_lm/bias", *norm, *dense}
    weights = bert.state_dict()
    np.testing.assert_array_equal(
        arrays["sentence/dense/kernel"], weights["cls.seq_relationship.weight"].numpy().T
    )


def test_albert(tmp_path):
    model = random_model("AlbertForPreTraining", "gelu_new", ALBERT)
    tensors = google_tensors(model)
    group = "bert/encoder/transformer/group_1/inner_group_0"
    assert f"{group}/ffn_1/intermediate/output/dense/kernel" in tensors
    assert {f"{group}/LayerNorm/gamma", f"{group}/LayerNorm_1/beta"} < tensors.keys()
    folder = write_release(
        tmp_path, tensors | slots(tensors), "albert_config.json", ALBERT, "model.ckpt-best"
    )
    encoder = Encoder.from_preset(folder)
    assert (encoder.config.num_layers, encoder.config.num_blocks) == (4, 2)
    assert_same_outputs(encoder, model.albert)
    checkpoint = read_checkpoint(folder)
    assert checkpoint.part("masked_lm/transform/")["masked_lm/transform/kernel"].shape == (32, 8)
    assert checkpoint.task["sentence_order"]
    assert checkpoint.part("sentence/").keys() == {"sentence/dense/kernel", "sentence/dense/bias"}


@pytest.fixture(scope="module")
def electra():
    """Discriminator, generator, and the tensors of the checkpoint that holds both."""
    discriminator = random_model("ElectraForPreTraining", "gelu", ELECTRA)
    generator = random_model("ElectraForMaskedLM", "gelu", GENERATOR)
    tensors = google_tensors(discriminator)
    with torch.no_grad():  # the generator has the discriminator's embeddings
        pairs = zip(
            generator.electra.embeddings.parameters(),
            discriminator.electra.embeddings.parameters(),
            strict=True,
        )
        for mine, shared in pairs:
            mine.copy_(shared)
    for name, array in google_tensors(generator).items():
        if not name.startswith("electra/embeddings/"):
            tensors[re.sub("^electra/", "generator/", name)] = array
    return discriminator, generator, tensors


def test_the_discriminator_of_electra(electra, tmp_path):
    discriminator, _, tensors = electra
    assert {"electra/embeddings_project/kernel", "generator_predictions/LayerNorm/gamma"} < set(
        tensors
    )
    folder = write_release(tmp_path, tensors | slots(tensors), "electra_config.json", ELECTRA)
    encoder = Encoder.from_preset(folder)
    assert encoder.config.pooler_activation is None
    assert encoder.config.activation == "gelu"  # the erf form
    assert_same_outputs(encoder, discriminator.electra)
    checkpoint = read_checkpoint(folder)
    assert {"global_step", "generator_predictions/output_bias"} < set(checkpoint.left)
    assert {name for name in checkpoint.arrays if not name.startswith("encoder/")} == {
        f"discriminator/{x}/{y}" for x in ("transform", "output") for y in ("kernel", "bias")
    }


@pytest.mark.parametrize("own_embeddings", [False, True])
def test_the_generator_of_electra(electra, tmp_path, own_embeddings):
    _, generator, tensors = electra
    if own_embeddings:
        own = {
            name.replace("electra/", "generator/"): array
            for name, array in tensors.items()
            if name.startswith("electra/embeddings/")
        }
        tensors = {k: v * 0 if k.startswith("electra/") else v for k, v in tensors.items()} | own
    folder = write_release(tmp_path, tensors, "electra_config.json", GENERATOR)
    assert_same_outputs(Encoder.from_preset(folder), generator.electra)
    arrays = read_checkpoint(folder).arrays
    bias = generator.state_dict()["generator_lm_head.bias"]
    np.testing.assert_array_equal(arrays["masked_lm/bias"], bias.numpy())
    assert not any(name.startswith("discriminator/") for name in arrays)


def test_electra_releases_bring_no_config_so_the_error_says_what_to_write(electra, tmp_path):
    folder = write_release(tmp_path, electra[2], prefix="electra_small")  # no .ckpt in the name
    with pytest.raises(
        ValueError, match=r"electra_config.json next to .*: write this file"
    ) as error:
        read_checkpoint(folder)
    said = json.loads(re.search(r"\{.*\}", str(error.value))[0])
    assert said == {**ELECTRA, "num_attention_heads": 1}  # of width 64, as ELECTRA's own
    (folder / "electra_config.json").write_text(json.dumps(said))
    assert read_checkpoint(folder).config.embedding_size == 8


def test_heads_of_fine_tuned_models(bert, tmp_path):
    tensors = {n: a for n, a in google_tensors(bert).items() if not n.startswith("cls/")}
    tensors["cls/squad/output_weights"] = np.ones((2, 32), "float32")
    tensors["cls/squad/output_bias"] = np.ones(2, "float32")
    folder = write_release(tmp_path, tensors, "bert_config.json", BERT, "model.ckpt-900")
    checkpoint = read_checkpoint(folder)
    assert checkpoint.part("span/")["span/dense/kernel"].shape == (32, 2)
    tensors["output_weights"] = np.ones((3, 32), "float32")
    tensors["output_bias"] = np.ones(3, "float32")
    write_release(tmp_path, tensors, prefix="model.ckpt-900")
    checkpoint = read_checkpoint(folder)
    assert checkpoint.part("classifier/")["classifier/dense/kernel"].shape == (32, 3)
    assert checkpoint.labels == ("LABEL_0", "LABEL_1", "LABEL_2")


@pytest.mark.tensorflow
@pytest.mark.usefixtures("eagerly")
def test_a_classifier_of_run_classifier_is_one_without_further_ado(tmp_path):
    """Its classes have no names in the file; its logits are those of the same head elsewhere."""
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"word{i}" for i in range(45))]
    WordPieceTokenizer(pieces).save(tmp_path)
    (tmp_path / "tokenizer_config.json").unlink()  # Google's releases have none
    model = random_model("BertForSequenceClassification", "gelu_new", BERT, num_labels=3)
    tensors = {google_name(name): array for name, array in google_tensors(model).items()}
    tensors["output_weights"] = tensors.pop("classifier/kernel").T
    tensors["output_bias"] = tensors.pop("classifier/bias")
    write_release(tmp_path, tensors, "bert_config.json", BERT, "model.ckpt-900")
    task = Task.from_preset(tmp_path)
    assert type(task) is TextClassifier
    assert task.labels == ["LABEL_0", "LABEL_1", "LABEL_2"]
    (answer,) = task.predict(["word3 word40 word7"])
    with torch.no_grad():
        logits = model(torch.tensor([[2, 8, 45, 12, 3]])).logits
    assert_close([*answer["probabilities"].values()], logits.softmax(-1)[0], 1e-5)
    named = TextClassifier.from_preset(tmp_path, labels=["a", "b", "c"])
    assert list(named.predict(["word3"])[0]["probabilities"]) == ["a", "b", "c"]


@pytest.mark.parametrize(("layers", "groups"), [(22, 22), (44, 22)])
def test_albert_in_groups_that_google_rounds_otherwise(tmp_path, layers, groups):
    """Layer 15 of 22 is of group 14, so that group 15 is in no file of theirs."""
    small = {"hidden_size": 8, "intermediate_size": 8, "num_attention_heads": 1}
    content = {**ALBERT, **small, "num_hidden_layers": layers, "num_hidden_groups": groups}
    tensors = google_tensors(random_model("AlbertForPreTraining", "gelu_new", content))
    write_release(tmp_path, tensors, "albert_config.json", content)
    message = r"Google assigns .*group 14, not 15. Received: 22 groups of .*albert_config.json"
    for whole in (True, False):
        if not whole:
            tensors = {name: x for name, x in tensors.items() if "group_15/" not in name}
            write_release(tmp_path, tensors)
        with pytest.raises(ValueError, match=message):
            Encoder.from_preset(tmp_path)


def test_albert_in_groups_that_do_not_divide_the_layers(tmp_path):
    content = {**ALBERT, "num_hidden_layers": 7, "num_hidden_groups": 3}
    model = random_model("AlbertForPreTraining", "gelu_new", content)
    folder = write_release(tmp_path, google_tensors(model), "albert_config.json", content)
    assert_same_outputs(Encoder.from_preset(folder), model.albert)


@pytest.mark.parametrize(
    "head",
    [
        ("project/logits/W", "crf_loss/transitions"),
        ("task_specific/mnli/dense/kernel",),
        ("output_weights",),  # without its bias
    ],
)
def test_a_head_that_is_not_known_is_named_and_leaves_the_encoder(bert, tmp_path, head):
    tensors = {n: x for n, x in google_tensors(bert).items() if n.startswith("bert/")}
    tensors |= {name: np.ones((3, 32), np.float32) for name in head}
    tensors["current_loss_scale"] = np.float32(1)
    folder = write_release(tmp_path, tensors, "bert_config.json", BERT)
    with pytest.raises(ValueError, match=rf"has no task for \({', '.join(sorted(head))}\)"):
        Task.from_preset(folder)
    assert_same_outputs(Encoder.from_preset(folder), bert.bert)


@pytest.mark.parametrize(
    ("rules", "content"), [(bert_rules, BERT), (albert_rules, ALBERT), (electra_rules, ELECTRA)]
)
def test_names_go_both_ways(rules, content, electra, bert, tmp_path):
    if rules is bert_rules:
        tensors = google_tensors(bert)
    elif rules is albert_rules:
        tensors = google_tensors(random_model("AlbertForPreTraining", "gelu_new", ALBERT))
    else:
        tensors = google_tensors(electra[0])
    name = rules.__name__.removesuffix("_rules")
    folder = write_release(tmp_path, tensors, f"{name}_config.json", content)
    checkpoint = read_checkpoint(folder)
    back = write_arrays(rules(checkpoint.config), checkpoint.arrays)
    assert back.keys() == tensors.keys()
    for name in tensors:
        np.testing.assert_array_equal(back[name], tensors[name])


@pytest.mark.parametrize(
    ("file", "content", "changes", "fields"),
    [
        ("bert", BERT, {"hidden_dropout_prob": 0.2}, {"dropout": 0.2, "activation": "gelu_tanh"}),
        ("bert", BERT, {"attention_probs_dropout_prob": 0}, {"attention_dropout": 0}),
        ("bert", BERT, {"hidden_act": "relu", "initializer_range": 0.1}, {"activation": "relu"}),
        ("bert", BERT, {"directionality": "bidi", "pooler_num_fc_layers": 3}, {"num_heads": 4}),
        ("albert", ALBERT, {}, {"num_layer_groups": 2, "dropout": 0, "activation": "gelu_tanh"}),
        ("electra", ELECTRA, {}, {"activation": "gelu", "layer_norm_epsilon": 1e-12}),
    ],
)
def test_values_of_the_config(file, content, changes, fields, bert, electra, tmp_path):
    tensors = {"bert": google_tensors(bert), "electra": electra[2]}.get(file) or google_tensors(
        random_model("AlbertForPreTraining", "gelu_new", ALBERT)
    )
    write_release(tmp_path, tensors, f"{file}_config.json", {**content, **changes})
    config = read_checkpoint(tmp_path).config
    assert {name: getattr(config, name) for name in fields} == fields


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_act": "mish"}, "`hidden_act` must be one of gelu, relu, tanh. Received: 'mish'"),
        ({"hidden_act": ["gelu"]}, r"`hidden_act` must be one of gelu.*Received: \['gelu'\] in"),
        (
            {"num_hidden_layers": 10**12},
            "at most 1000 layers.*Received: 1,000,000,000,000 in",
        ),
        ({"vocab_size": "50"}, "`vocabulary_size` must be an integer.*Received: '50'"),
        ({"directionality": "unidi"}, "`directionality` must be 'bidi'.*'unidi' in .*bert_config"),
        ({"rotary": 1}, "Every key .* supported.*unknown rotary in .*bert_config.json"),
        ({"hidden_size": 30}, "multiple of `num_heads`"),
        ({"hidden_size": 64}, r"! shape of encoder/embeddings/token: expected \(50, 64\)"),
        ({"num_hidden_layers": 1}, r"\+ unexpected encoder/bert/encoder/layer_1/attention"),
        ({"num_hidden_layers": 3}, "- missing encoder/layers/2/attention/qkv/kernel"),
    ],
)
def test_a_config_that_does_not_fit_is_refused(release, changes, message):
    (release / "bert_config.json").write_text(json.dumps({**BERT, **changes}))
    with pytest.raises(ValueError, match=message):
        Encoder.from_preset(release)


def test_a_missing_size_is_named(release):
    content = {k: v for k, v in BERT.items() if k != "type_vocab_size"}
    (release / "bert_config.json").write_text(json.dumps(content))
    with pytest.raises(
        ValueError, match=r"must have type_vocab_size. Received: .*bert_config.json"
    ):
        read_checkpoint(release)


def test_configs_of_other_programs_do_not_count(release):
    (release / "tokenizer_config.json").write_text("{}")
    (release / "bert_config.json").rename(release / "my_config.json")
    assert read_checkpoint(release).config.vocabulary_size == 50
    (release / "your_config.json").write_text("{}")
    with pytest.raises(
        ValueError, match=r"one config of the model. Received: my_config.json, your"
    ):
        read_checkpoint(release)
    (release / "bert_config.json").write_text(json.dumps(BERT))
    assert read_checkpoint(release).config.vocabulary_size == 50


def test_damaged_weights_leave_no_model(release):
    data = release / "bert_model.ckpt.data-00000-of-00001"
    data.write_bytes(data.read_bytes()[:1000])
    with pytest.raises(ValueError, match=r"damaged or truncated.*Received: .*bert_model.ckpt"):
        Encoder.from_preset(release)


def test_no_config(release):
    (release / "bert_config.json").unlink()
    with pytest.raises(ValueError, match=r"requires bert_config.json next to its checkpoint"):
        read_checkpoint(release)


def test_values_that_are_not_in_the_file_take_no_memory(tmp_path, bert):
    """The index declares 4 MB, and the data file has 1 kB: no memory is taken for them."""
    tensors = {**google_tensors(bert), "bert/embeddings/more": np.zeros((1000, 1000), "float32")}
    write_release(tmp_path, tensors, "bert_config.json", BERT)
    data = tmp_path / "bert_model.ckpt.data-00000-of-00001"
    data.write_bytes(data.read_bytes()[:1000])
    with pytest.raises(ValueError, match=r"\(4,\d+,\d+ bytes declared, 1,000 stored\). Received: "):
        read_checkpoint(tmp_path)


def test_other_checkpoints_of_tensorflow_are_refused(tmp_path):
    tensors = {"model/encoder/.ATTRIBUTES/VARIABLE_VALUE": np.zeros(1, "float32")}
    write_release(tmp_path, tensors, "bert_config.json", BERT)
    with pytest.raises(ValueError, match=r"variables below electra/, bert/.*ATTRIBUTES"):
        read_checkpoint(tmp_path)


def test_nan_weights_are_refused(release, bert):
    tensors = google_tensors(bert)
    tensors["bert/pooler/dense/bias"][3] = np.nan
    write_release(release, tensors)
    with pytest.raises(ValueError, match="! encoder/pooler/bias holds NaN"):
        Encoder.from_preset(release)
