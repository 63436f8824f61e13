"""Keys of a config.json that are ignored on the user's word."""

import json
import shutil

import pytest

import kbert
from kbert.checkpoints import ignoring, read_checkpoint
from kbert.checkpoints.huggingface.architectures import architectures
from kbert.checkpoints.huggingface.huggingface import import_model
from kbert.conversion import convert
from kbert.tasks import TextClassifier
from tests.checkpoints.huggingface.test_unread_keys import OTHER_MODELS, content_of
from tests.harness import tiny_config

INVENTED = {"house_style": {"a": 1}, "our_threshold": 0.4}


def with_keys(folder, **keys):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **keys}))


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A folder that nobody changes."""
    tokenizer = kbert.WordPieceTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"])
    config = tiny_config(vocabulary_size=6, pooler_activation="tanh")
    task = TextClassifier(kbert.Encoder(config), tokenizer, labels=["no", "yes"])
    folder = tmp_path_factory.mktemp("saved") / "there"
    task.save_to_preset(folder, "huggingface")
    with_keys(folder, **INVENTED)
    return folder


@pytest.fixture
def folder(saved, tmp_path):
    return shutil.copytree(saved, tmp_path / "there")


def test_the_refusal_says_how_they_are_ignored(folder):
    with pytest.raises(
        ValueError,
        match=r"If they do not change the model, pass ignore=.*"
        r"--ignore=house_style,our_threshold\)\. Received: unknown",
    ):
        read_checkpoint(folder)


def test_they_are_named_when_they_are_ignored(folder, tmp_path, caplog):
    for load in (kbert.Encoder.from_preset, TextClassifier.from_preset, read_checkpoint):
        caplog.clear()
        load(folder, ignore=list(INVENTED))
        assert "ignored, as requested: house_style, our_threshold" in caplog.text
    assert convert(folder, tmp_path / "here", ignore=list(INVENTED)).left == ()
    with ignoring(["house_style"]), ignoring(["our_threshold"]):
        read_checkpoint(folder)
    with pytest.raises(ValueError, match=r"unknown our_threshold"):
        read_checkpoint(folder, ignore=["house_style"])


@pytest.mark.parametrize("key", OTHER_MODELS)
def test_a_key_that_changes_the_model_is_refused(key):
    """Of those that another architecture has, or whose name says it."""
    content = {**content_of("bert"), key: OTHER_MODELS[key]}
    known = {"auto_map", "emb_pooler", "adapter_layers", "lora_rank", "pooling_mode", "output_dim"}
    if key in known:  # nobody knows better than who asks
        with ignoring([key]):
            import_model(content, {}, "there")
    else:
        with ignoring([key]), pytest.raises(ValueError, match=rf"cannot be ignored.*\['{key}'\]"):
            import_model(content, {}, "there")


@pytest.mark.parametrize("model_type", architectures())
def test_a_key_that_is_read_is_not_ignored(model_type):
    content = content_of(model_type)
    table = architectures()[model_type]
    for key in (*table.fields, *table.required):
        if key in content:
            with ignoring([key]), pytest.raises(ValueError, match=f"cannot be ignored.*{key}"):
                import_model(content, {}, "there")


def test_what_is_no_key_of_the_folder_is_refused(folder, tmp_path):
    with pytest.raises(ValueError, match=r"keys of a Hugging Face config.*'house_stile'"):
        read_checkpoint(folder, ignore=["house_stile"])
    kbert.Encoder(tiny_config()).save_to_preset(tmp_path / "own")
    with pytest.raises(ValueError, match=r"keys of a Hugging Face config.*'house_style'"):
        kbert.Encoder.from_preset(tmp_path / "own", ignore=["house_style"])
    for ignore in ("house_style", None):
        with pytest.raises(ValueError, match=rf"a list of names of keys. Received: {ignore!r}"):
            read_checkpoint(folder, ignore=ignore)


def test_a_harmless_key_is_ignored_whatever_its_name(folder, caplog):
    with_keys(folder, loss_scale=2.0, logit_scale=None)
    read_checkpoint(folder, ignore=[*INVENTED, "loss_scale", "logit_scale"])
    assert "ignored, as requested: house_style, logit_scale, loss_scale" in caplog.text
