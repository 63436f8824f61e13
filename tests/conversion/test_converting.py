"""Conversion: what is written, reported and refused; the check finds what is not the same."""

import json
import shutil

import numpy as np
import pytest

from kbert import conversion
from kbert.catalog.families import family
from kbert.checkpoints import read_checkpoint, write_checkpoint
from kbert.checkpoints.preset import write_folder as write_preset
from kbert.conversion import check, convert
from kbert.heads import SpanBoundaryHead
from kbert.io.arrays import write_safetensors
from kbert.models import Encoder
from kbert.models.generators.decoder import Decoder
from kbert.models.weights import get_arrays
from kbert.tasks import Pretraining
from kbert.tokenizers import WordPieceTokenizer, load_tokenizer
from tests.harness import randomise, tiny_config

ZEROS = np.zeros(2, "float32")


@pytest.fixture(scope="module")
def saved(tmp_path_factory, tiny_vocabulary):
    """A task with both heads, as kbert saves it; nobody changes it."""
    tokenizer = WordPieceTokenizer(tiny_vocabulary)
    config = tiny_config(vocabulary_size=len(tiny_vocabulary), activation="gelu_tanh")
    task = Pretraining(Encoder(config), tokenizer)
    randomise(task)
    folder = tmp_path_factory.mktemp("saved") / "preset"
    task.save_to_preset(folder)
    return folder


@pytest.fixture
def preset(saved, tmp_path):
    """A copy of it."""
    return shutil.copytree(saved, tmp_path / "preset")


def save_encoder(folder, **changes):
    encoder = Encoder(tiny_config(**changes))
    randomise(encoder)
    encoder.save_to_preset(folder)
    return folder


def test_there_and_back_is_bit_equal_with_heads_and_tokenizer(preset, tmp_path):
    convert(preset, tmp_path / "there", format="huggingface")
    convert(tmp_path / "there", tmp_path / "back")
    before, after = read_checkpoint(preset), read_checkpoint(tmp_path / "back")
    assert before.config == after.config
    assert before.arrays.keys() == after.arrays.keys()
    for name, array in before.arrays.items():
        np.testing.assert_array_equal(after.arrays[name], array)
    assert load_tokenizer(tmp_path / "back").checksum == load_tokenizer(preset).checksum
    assert Pretraining.from_preset(tmp_path / "back").next_sentence


def test_the_report(preset, tmp_path):
    done = convert(preset, tmp_path / "there", format="huggingface")
    lines = [" ".join(line.split()) for line in str(done).splitlines()]
    assert lines[0] == f"{preset} -> {tmp_path}/there (huggingface, float32)"
    assert "weights tensors shape parameters" in lines
    assert "encoder/layers/*/attention/qkv/kernel 2 16 × 48 1,536" in lines
    assert "masked_lm/transform/kernel 1 16 × 16 256" in lines
    total = sum(array.size for array in read_checkpoint(preset).arrays.values())
    assert f"all {len(done.shapes)} {total:,}" in lines
    assert done.parameters == total
    assert lines[-2:] == ["left out: nothing", f"tokenizer: wordpiece, {done.tokenizer[11:]}"]


def test_what_holds_no_weight_is_listed(tmp_path):
    folder = save_encoder(tmp_path / "preset")
    convert(folder, tmp_path / "hub", format="huggingface")
    from kbert.io.arrays import read_safetensors

    arrays = read_safetensors(tmp_path / "hub/model.safetensors")
    arrays["bert.embeddings.position_ids"] = np.arange(24)[None]
    write_safetensors(tmp_path / "hub/model.safetensors", arrays)
    done = convert(tmp_path / "hub", tmp_path / "back")
    assert done.left == ("bert.embeddings.position_ids",)
    assert str(done).endswith(
        "left out, 1 that the target does not have:\n"
        "  bert.embeddings.position_ids\ntokenizer: none in the source"
    )


def test_long_lists_are_grouped_and_cut():
    from kbert.conversion.converting import _listed

    names = [f"layer_{i}/adam_{slot}" for i in range(12) for slot in "mv"]
    names += [f"layer_{i}/ids" for i in range(3)] + [f"thing_{letter}" for letter in "abcdefghijk"]
    lines = _listed(names)
    assert lines[0].startswith("left out, 38 that")
    assert lines[1:4] == ["  */adam_m (× 12)", "  */adam_v (× 12)", "  layer_*/ids (× 3)"]
    assert lines[-1] == "  … and 2 more"
    assert len(lines) == 14


def test_tensors_without_a_place_are_refused_or_left_out_on_purpose(tmp_path):
    folder = save_encoder(tmp_path / "preset")
    checkpoint = read_checkpoint(folder)
    odd = {"encoder/layers/9/extra": np.ones(2), "mystery/bias": np.ones(3)}
    write_preset(folder, checkpoint.config, {**checkpoint.arrays, **odd})
    message = r"strict=False leaves out the others. Received: layers/9/extra, mystery/bias in "
    with pytest.raises(ValueError, match=message):
        convert(folder, tmp_path / "there")
    assert not (tmp_path / "there").exists()
    done = convert(folder, tmp_path / "there", strict=False)
    assert done.left == ("layers/9/extra", "mystery/bias")
    assert read_checkpoint(tmp_path / "there").arrays.keys() == checkpoint.arrays.keys()


def test_an_incomplete_or_broken_source_writes_nothing(tmp_path):
    folder = save_encoder(tmp_path / "preset")
    checkpoint = read_checkpoint(folder)
    arrays = dict(checkpoint.arrays)
    bias = arrays.pop("encoder/layers/0/attention/qkv/bias")
    for damage, message in (
        ({}, "- missing encoder/layers/0/attention/qkv/bias"),
        ({"encoder/layers/0/attention/qkv/bias": bias[1:]}, "! shape of .*expected .48,., is .47,"),
        ({"encoder/layers/0/attention/qkv/bias": bias * np.nan}, "holds NaN or infinity"),
    ):
        write_preset(folder, checkpoint.config, {**arrays, **damage})
        with pytest.raises(ValueError, match=message):
            convert(folder, tmp_path / "there", format="huggingface")
        assert not (tmp_path / "there").exists()


def test_a_vocabulary_that_is_larger_than_the_table(preset, tmp_path, tiny_vocabulary):
    size = len(tiny_vocabulary)
    WordPieceTokenizer([*tiny_vocabulary, "surplus"]).save(preset)
    with pytest.raises(ValueError, match=f"it has {size}. Received: {size + 1} entries in .*pres"):
        convert(preset, tmp_path / "there")
    assert not (tmp_path / "there").exists()


def test_a_target_that_is_taken(preset, tmp_path):
    before = {path.name: path.read_bytes() for path in preset.iterdir()}
    with pytest.raises(ValueError, match=r"an empty folder or not exist. Received: .*preset"):
        convert(preset, preset, format="huggingface")
    assert {path.name: path.read_bytes() for path in preset.iterdir()} == before
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"an empty folder or not exist. Received: .*file"):
        convert(preset, tmp_path / "file")


def test_a_failure_in_the_middle_leaves_nothing(preset, tmp_path, monkeypatch):
    def full(self, folder):
        raise OSError(28, "No space left on device")

    (tmp_path / "empty").mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(WordPieceTokenizer, "save", full)
        with pytest.raises(OSError, match="No space left"):
            convert(preset, tmp_path / "empty")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "preset"]
    assert not any((tmp_path / "empty").iterdir())
    convert(preset, tmp_path / "empty")
    assert check(preset, tmp_path / "empty")[0].passed


def test_a_target_that_cannot_be_written(preset, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match=r"Cannot write .*/file/there"):
        convert(preset, tmp_path / "file/there")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"format": "onnx"}, "`format` must be one of kbert, .*Received: 'onnx'"),
        ({"architecture": "bert"}, "architecture='bert' with format='kbert'"),
        ({"format": "huggingface", "architecture": "roberta"}, "RoBERTa"),
        ({"format": "huggingface", "architecture": "gpt"}, "Received: 'gpt'"),
        ({"revision": "v1"}, "must be left out for a local path"),
    ],
)
def test_options_that_cannot_be(preset, tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        convert(preset, tmp_path / "there", **options)
    assert not (tmp_path / "there").exists()


def test_the_check_without_another_library_compares_with_the_target_read_back(preset, tmp_path):
    convert(preset, tmp_path / "there")
    (done,) = check(preset, tmp_path / "there")
    assert done.passed
    outputs = ("sequence", "pooled", "masked_lm", "sentence")
    assert done.differences == dict.fromkeys(outputs, 0.0)
    assert str(done).startswith("kbert on the source, kbert on the target: equal; largest diff")


@pytest.mark.parametrize(
    "head",
    ["encoder/layers/1/feed_forward/output/bias", "masked_lm/bias", "sentence/dense/bias"],
)
def test_the_check_finds_a_wrong_weight(preset, tmp_path, head):
    convert(preset, tmp_path / "there")
    checkpoint = read_checkpoint(tmp_path / "there")
    checkpoint.arrays[head] = changed = checkpoint.arrays[head].copy()
    changed[1] += 0.01
    write_preset(tmp_path / "there", checkpoint.config, checkpoint.arrays)
    (done,) = check(preset, tmp_path / "there")
    assert not done.passed
    assert "NOT EQUAL" in str(done)
    output = "masked_lm" if head.startswith("encoder/") else head.split("/")[0]
    assert done.differences[output] > conversion.TOLERANCE


def test_the_check_finds_another_activation(preset, tmp_path):
    pytest.importorskip("transformers")
    pytest.importorskip("torch")
    convert(preset, tmp_path / "there", format="huggingface")
    assert all(done.passed for done in check(preset, tmp_path / "there"))
    path = tmp_path / "there/config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "hidden_act": "gelu"}))
    ours, theirs = check(preset, tmp_path / "there")
    assert not ours.passed
    assert not theirs.passed


def test_nan_does_not_pass():
    assert not conversion.Check("a", "b", {"sequence": float("nan")}).passed


COMMON = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 32,
    "max_position_embeddings": 26,
}
SIZES = dict.fromkeys(("bert", "roberta", "xlm-roberta", "albert", "electra"), COMMON)
SIZES["mobilebert"] = {"num_hidden_layers": 2, "max_position_embeddings": 26}
SIZES["convbert"] = {**COMMON, "embedding_size": 8}
SIZES["xlnet"] = {"d_model": 16, "n_layer": 2, "n_head": 4, "d_inner": 32}
SIZES["distilbert"] = {"dim": 16, "n_layers": 2, "n_heads": 4, "hidden_dim": 32}
SIZES["distilbert"]["max_position_embeddings"] = 26
MODELS = {
    "bert": ("BertForPreTraining", {}),
    "roberta": ("RobertaForMaskedLM", {"type_vocab_size": 1, "pad_token_id": 1}),
    "xlm-roberta": ("XLMRobertaModel", {"type_vocab_size": 1, "pad_token_id": 1}),
    "albert": ("AlbertForMaskedLM", {"embedding_size": 8}),
    "distilbert": ("DistilBertForMaskedLM", {}),
    "electra": ("ElectraForPreTraining", {"embedding_size": 8}),
}
# With two heads; with none, and without segments; with another head than for masks.
FIRST = ("bert", "xlm-roberta", "electra")


@pytest.mark.parametrize(
    "model_type",
    [x if x in FIRST else pytest.param(x, marks=pytest.mark.slow) for x in MODELS],
)
def test_transformers_agrees_for_every_architecture_in_both_directions(tmp_path, model_type):
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    class_name, changes = MODELS[model_type]
    sizes = {"vocab_size": 40, **SIZES[model_type], **changes}
    config = transformers.AutoConfig.for_model(model_type, **sizes)
    torch.manual_seed(0)
    model = getattr(transformers, class_name)(config)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            centre = 1.0 if "LayerNorm.weight" in name or "layer_norm.weight" in name else 0.0
            if weight.ndim == 1 or "embeddings" not in name:
                weight.normal_(centre, 0.15)
    model.save_pretrained(tmp_path / "source")
    convert(tmp_path / "source", tmp_path / "here")
    convert(tmp_path / "here", tmp_path / "there", format="huggingface", architecture=model_type)
    first = check(tmp_path / "source", tmp_path / "here")
    second = check(tmp_path / "source", tmp_path / "there")
    assert [c.candidate.split()[0] for c in first + second] == ["kbert", "kbert", "transformers"]
    for done in first + second:
        assert done.passed, str(done)
        assert done.reference.startswith("transformers")
        has_head = "MaskedLM" in class_name or model_type == "bert"
        assert ("masked_lm" in done.differences) == has_head


HEADS = [
    ("BertForQuestionAnswering", {"span_start", "span_end"}),
    ("BertForMultipleChoice", {"choice"}),
    ("XLNetForSequenceClassification", {"classifier"}),  # of the last token
    ("ConvBertForTokenClassification", {"tokens"}),  # its convolutions read padding
]
MORE_HEADS = [
    ("BertForPreTraining", {"masked_lm", "sentence"}),
    ("BertForNextSentencePrediction", {"sentence"}),
    ("BertForSequenceClassification", {"classifier"}),
    ("BertForTokenClassification", {"tokens"}),
    ("ElectraForPreTraining", {"discriminator"}),
    ("ElectraForMultipleChoice", {"choice"}),
    ("AlbertForPreTraining", {"masked_lm", "sentence"}),
    ("RobertaForSequenceClassification", {"classifier"}),
    ("MobileBertForQuestionAnswering", {"span_start", "span_end"}),
    ("ConvBertForSequenceClassification", {"classifier"}),
    ("DistilBertForSequenceClassification", {"classifier"}),
]


@pytest.mark.parametrize(
    ("class_name", "outputs"),
    [*HEADS, *(pytest.param(*case, marks=pytest.mark.slow) for case in MORE_HEADS)],
)
def test_transformers_agrees_about_every_head(tmp_path, class_name, outputs):
    """And finds one weight of the head that is another."""
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    model_class = getattr(transformers, class_name)
    kind = model_class.config_class.model_type
    model = model_class(model_class.config_class(vocab_size=40, **SIZES[kind]))
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(torch.randn_like(weight) * 0.15)
    model.save_pretrained(tmp_path / "source")
    convert(tmp_path / "source", tmp_path / "here")
    convert(tmp_path / "here", tmp_path / "there", format="huggingface", architecture=kind)
    for target in ("here", "there"):
        for done in check(tmp_path / "source", tmp_path / target):
            assert done.passed, str(done)
            assert done.differences.keys() - {"sequence", "pooled"} == outputs
    checkpoint = read_checkpoint(tmp_path / "here")
    (head,) = [
        name
        for name in checkpoint.arrays
        if name.split("/")[0] in {*outputs, "span"} - {"masked_lm"} and name.endswith("bias")
    ][-1:]
    checkpoint.arrays[head] = changed = checkpoint.arrays[head].copy()
    changed[0] += 0.1
    write_preset(tmp_path / "here", checkpoint.config, checkpoint.arrays, task=checkpoint.task)
    (done,) = check(tmp_path / "source", tmp_path / "here")
    assert not done.passed


def test_labels_of_a_fine_tuned_model_are_kept_or_listed(tmp_path):
    pytest.importorskip("keras_hub")
    checkpoint = read_checkpoint(save_encoder(tmp_path / "preset", activation="gelu_tanh"))
    head = {"classifier/dense/kernel": np.ones((16, 2), "float32"), "classifier/dense/bias": ZEROS}
    arrays, options = {**checkpoint.arrays, **head}, {"labels": ["bad", "good"]}
    write_checkpoint(tmp_path / "hub", checkpoint.config, arrays, "huggingface", **options)
    convert(tmp_path / "hub", tmp_path / "here")
    assert convert(tmp_path / "here", tmp_path / "again", format="huggingface").left == ()
    assert read_checkpoint(tmp_path / "again").labels == ("bad", "good")
    done = convert(tmp_path / "hub", tmp_path / "there", format="keras_hub")
    assert done.left == (*head, "labels: bad, good")


def test_a_head_that_no_other_library_has(preset, tmp_path):
    checkpoint = read_checkpoint(preset)
    encoder = Encoder(checkpoint.config)
    head = get_arrays(SpanBoundaryHead(encoder.config, encoder.token_embedding), "span_boundary")
    write_preset(preset, encoder.config, {**checkpoint.arrays, **head}, task=checkpoint.task)
    assert convert(preset, tmp_path / "here").left == ()
    done = convert(preset, tmp_path / "there", format="huggingface")
    assert set(done.left) == head.keys()
    assert not head.keys() & done.shapes.keys()


@pytest.mark.parametrize(("pooler", "epsilon"), [("tanh", 1e-5), ("relu", 1e-12)])
def test_a_pooler_that_keras_hub_has_not_is_left(tmp_path, pooler, epsilon):
    """RoBERTa's, and DistilBERT's under a classifier."""
    pytest.importorskip("keras_hub")
    values = {"num_segments": 0, "activation": "gelu", "layer_norm_epsilon": epsilon}
    folder = save_encoder(tmp_path / "preset", pooler_activation=pooler, **values)
    done = convert(folder, tmp_path / "there", format="keras_hub")
    assert sorted(done.left) == ["encoder/pooler/bias", "encoder/pooler/kernel"]
    assert not any("pooler" in name for name in done.shapes)
    first, second = check(folder, tmp_path / "there")
    assert first.passed
    assert second.passed
    assert second.differences.keys() == {"sequence"}


@pytest.mark.parametrize("activation", ["gelu_tanh", "gelu"])
def test_keras_hub_runs_what_it_can_be(tmp_path, preset, activation):
    pytest.importorskip("keras_hub")
    checkpoint = read_checkpoint(preset)
    config = checkpoint.config.replace(activation=activation)
    write_preset(preset, config, checkpoint.arrays, task=checkpoint.task)
    if activation == "gelu":  # its BERT has the other form
        with pytest.raises(ValueError, match="gelu"):
            convert(preset, tmp_path / "there", format="keras_hub")
        return
    done = convert(preset, tmp_path / "there", format="keras_hub")
    assert "masked_lm/bias" in done.left
    assert "masked_lm/bias" not in done.shapes
    first, second = check(preset, tmp_path / "there")
    assert first.passed, first
    assert second.passed, second
    assert second.candidate == "KerasHub on the target"
    assert second.differences.keys() == {"sequence", "pooled"}
    convert(tmp_path / "there", tmp_path / "back")
    assert check(tmp_path / "there", tmp_path / "back")[0].reference == "KerasHub on the source"


def test_encoders_alone_convert_too(tmp_path):
    folder = save_encoder(tmp_path / "preset", pooler_activation=None)
    done = convert(folder, tmp_path / "there", format="huggingface")
    assert done.tokenizer is None
    assert "encoder/pooler/kernel" not in done.shapes
    arrays = get_arrays(Encoder.from_preset(tmp_path / "there"), "encoder")
    assert arrays.keys() == done.shapes.keys()


@pytest.mark.parametrize("block", ["pre_norm", pytest.param("post_norm", marks=pytest.mark.slow)])
def test_a_decoder_goes_both_ways(block, tmp_path):
    config = family("gpt2-tiny").replace(vocabulary_size=30, max_positions=12, block=block)
    decoder = Decoder(config.replace(hidden_size=16, intermediate_size=64))
    randomise(decoder)
    decoder.save_to_preset(tmp_path / "preset")
    done = convert(tmp_path / "preset", tmp_path / "there", format="huggingface")
    assert done.parameters == decoder.config.count_parameters()
    assert not done.left
    pytest.importorskip("torch")
    checks = check(tmp_path / "preset", tmp_path / "there")
    assert [one.passed for one in checks] == [True, True]
    assert {*checks[1].differences} == {"sequence", "logits"}
    assert "transformers" in str(checks[1])
    convert(tmp_path / "there", tmp_path / "back")
    assert conversion.check(tmp_path / "there", tmp_path / "back")[0].passed
    arrays = read_checkpoint(tmp_path / "back").arrays
    for name, array in get_arrays(decoder, "decoder").items():
        np.testing.assert_array_equal(arrays[name], array, err_msg=name)
    other = Decoder(decoder.config)
    randomise(other, seed=1)
    other.save_to_preset(tmp_path / "other")
    assert not check(tmp_path / "there", tmp_path / "other")[0].passed
    with pytest.raises(ValueError, match=r"one of kbert, huggingface. Received: 'keras_hub'"):
        convert(tmp_path / "preset", tmp_path / "hub", format="keras_hub")


def test_heads_of_a_decoder_are_refused_or_left_out_on_purpose(tmp_path):
    config = family("gpt2-tiny").replace(vocabulary_size=30, max_positions=12, num_layers=1)
    arrays = get_arrays(Decoder(config), "decoder") | {"score.weight": np.ones((2, 128))}
    write_preset(tmp_path / "preset", config, arrays)
    with pytest.raises(ValueError, match=r"strict=False leaves .*. Received: score.weight in"):
        convert(tmp_path / "preset", tmp_path / "there")
    done = convert(tmp_path / "preset", tmp_path / "there", strict=False)
    assert done.left == ("score.weight",)
