import json

import pytest

from kbert.tokenizers import load_tokenizer, train_unigram
from kbert.tokenizers.bpe.byte_alphabet import CHARACTERS

models = pytest.importorskip("keras_hub").models

TEXTS = ["Red foxes jumped, jumping!", "the Café  quick 12", "jump"]


def ids_of(tokenizer):
    return [[int(i) for i in tokenizer(text)] for text in TEXTS]


@pytest.mark.parametrize("lowercase", [True, False])
@pytest.mark.parametrize("strip_accents", [True, False])
def test_wordpiece(tmp_path, tiny_vocabulary, lowercase, strip_accents):
    vocabulary = [*tiny_vocabulary, "Red", "Caf", "##é"]
    theirs = models.BertTokenizer(vocabulary, lowercase=lowercase, strip_accents=strip_accents)
    theirs.save_to_preset(str(tmp_path))
    ours = load_tokenizer(tmp_path)
    assert ours.kind == "wordpiece"
    assert ours.encode(TEXTS).to_list() == ids_of(theirs)


def test_byte_pair(tmp_path):
    vocabulary = ["<s>", "<pad>", "</s>", "<unk>", *CHARACTERS, "re", "Ġf", "ed", "<mask>"]
    theirs = models.RobertaTokenizer(
        {piece: i for i, piece in enumerate(vocabulary)}, ["r e", "Ġ f", "e d"]
    )
    theirs.save_to_preset(str(tmp_path))
    ours = load_tokenizer(tmp_path)
    assert (ours.kind, ours.cls_token, ours.pair_separators) == ("bpe", "<s>", 2)
    assert ours.encode(TEXTS).to_list() == ids_of(theirs)


@pytest.mark.parametrize(
    ("name", "layout"), [("AlbertTokenizer", "sentencepiece"), ("XLMRobertaTokenizer", "fairseq")]
)
def test_unigram(tmp_path, name, layout):
    texts = ["Red foxes jumped, jumping! the quick 12", "the quick jump"] * 9
    proto = train_unigram(texts, 60, layout=layout, preparation=False)
    theirs = getattr(models, name)(proto)
    theirs.save_to_preset(str(tmp_path))
    ours = load_tokenizer(tmp_path)
    assert ours.layout == layout
    assert ours.encode(TEXTS).to_list() == ids_of(theirs)


def test_settings_and_files_that_are_not_understood(tmp_path, tiny_vocabulary):
    models.BertTokenizer(tiny_vocabulary).save_to_preset(str(tmp_path))
    file = tmp_path / "tokenizer.json"
    content = json.loads(file.read_text())
    content["config"]["split"] = False
    file.write_text(json.dumps(content))
    with pytest.raises(
        ValueError, match=r"`split` must be True.*Received: False in .*tokenizer.js"
    ):
        load_tokenizer(tmp_path)
    (tmp_path / "assets/tokenizer/vocabulary.txt").unlink()
    with pytest.raises(
        FileNotFoundError, match=r"vocabulary.json or vocabulary.spm. Received: .*assets"
    ):
        load_tokenizer(tmp_path)
