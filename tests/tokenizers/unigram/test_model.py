"""SentencePiece models: damaged ones, other kinds, and those inside a tokenizer.json."""

import base64
import io
import json
import re

import pytest
import sentencepiece
import tokenizers
from sentencepiece.sentencepiece_model_pb2 import ModelProto

from kbert.tokenizers import UnigramTokenizer, load_tokenizer
from kbert.tokenizers.unigram.layouts import LAYOUTS
from kbert.tokenizers.unigram.model import character_model, read_model
from tests.tokenizers.unigram.sentencepiece_reference import corpus


def changed(model: bytes, change) -> bytes:
    proto = ModelProto.FromString(model)
    change(proto)
    return proto.SerializeToString()


def test_a_damaged_file_is_named(cased_model, tmp_path):
    path = tmp_path / "spiece.model"
    for content in (b"", b"no model", cased_model[: len(cased_model) // 2]):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"Received: .*spiece\.model"):
            read_model(path)
    piece = ModelProto.FromString(cased_model).pieces[20].piece.encode()
    path.write_bytes(cased_model.replace(piece, b"\xff" * len(piece), 1))
    with pytest.raises(ValueError, match=r"in UTF-8. Received: b'.*xff.*in .*spiece\.model"):
        read_model(path)

    def charsmap(change):
        def with_charsmap(proto):
            content = bytearray(proto.normalizer_spec.precompiled_charsmap)
            assert content
            proto.normalizer_spec.precompiled_charsmap = bytes(change(content))

        return changed(cased_model, with_charsmap)

    out = ((1 << 31) - 1024).to_bytes(4, "little")
    for damage in (lambda x: x[:-1], lambda x: x[4:], lambda x: x[:4] + out + x[8:]):
        with pytest.raises(ValueError, match=r"normalisation table.*damaged one of"):
            read_model(charsmap(damage))
    with pytest.raises(FileNotFoundError, match=r"No SentencePiece model. Received: .*nowhere"):
        UnigramTokenizer(tmp_path / "nowhere")


def test_other_kinds_are_refused():
    for kind in ("bpe", "char", "word"):
        out = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(corpus(100)), model_writer=out, model_type=kind,
            vocab_size=150, hard_vocab_limit=False, use_all_vocab=kind == "char", minloglevel=2,
        )  # fmt: skip
        with pytest.raises(ValueError, match=f"must be of kind unigram.*of kind {kind}"):
            read_model(out.getvalue())


def test_what_the_kernel_cannot_do_is_refused(cased_model):
    def as_suffix(proto):
        proto.trainer_spec.treat_whitespace_as_suffix = True

    with pytest.raises(ValueError, match="does not support treat_whitespace_as_suffix"):
        read_model(changed(cased_model, as_suffix))

    def twice(proto):
        proto.pieces.add(piece="▁the", score=-1.0)

    with pytest.raises(ValueError, match=r"no piece twice or empty.*\['▁the'\] twice"):
        read_model(changed(cased_model, twice))

    def keep_spaces(proto):
        proto.normalizer_spec.remove_extra_whitespaces = False

    with pytest.raises(ValueError, match="without remove_extra_whitespaces; pass preparation"):
        UnigramTokenizer(changed(cased_model, keep_spaces))


def test_offsets_need_every_character_to_be_a_piece(cased_model):
    def pruned(proto):
        kept = [piece for piece in proto.pieces if piece.piece != "h"]
        del proto.pieces[:]
        proto.pieces.extend(kept)

    model = changed(cased_model, pruned)
    tokenizer = UnigramTokenizer(model)
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    assert tokenizer.encode("the h house").numpy().tolist() == processor.encode("the h house")
    with pytest.raises(ValueError, match=r"is itself a piece.*Received: a model without \['h'\]"):
        tokenizer.encode_with_offsets("the h house")
    with pytest.raises(ValueError, match="is itself a piece"):
        character_model(read_model(model), [])


def tokenizer_json(model: bytes, layout: str) -> dict:
    """What Hugging Face writes of a model."""
    proto = ModelProto.FromString(model)
    vocabulary = [[piece.piece, piece.score] for piece in proto.pieces]
    charsmap = base64.b64encode(proto.normalizer_spec.precompiled_charsmap).decode()
    steps = [{"type": "Precompiled", "precompiled_charsmap": charsmap}]
    special = ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"]
    if beginning := LAYOUTS[layout].beginning:
        special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
        kept = vocabulary[3 if layout == "fairseq" else 1 :]
        vocabulary = [*([t, 0.0] for t in beginning), *kept, ["<mask>", 0.0]]
    else:
        quotes = {"type": "Replace", "pattern": {"String": "``"}, "content": '"'}
        before = [{"type": name} for name in ("NFKD", "StripAccents", "Lowercase")]
        steps = [quotes, *before, *steps]
    pieces = [piece for piece, _ in vocabulary]
    return {
        "normalizer": {"type": "Sequence", "normalizers": steps},
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [{"type": "WhitespaceSplit"}, {"type": "Metaspace"}],
        },
        "added_tokens": [
            {"id": pieces.index(token), "content": token, "special": True} for token in special
        ],
        "model": {
            "type": "Unigram",
            "unk_id": pieces.index("<unk>"),
            "vocab": vocabulary,
        },
    }


@pytest.mark.parametrize("layout", ["sentencepiece", "fairseq", "camembert"])
def test_a_tokenizer_json_holds_the_whole_model(cased_model, multilingual_model, tmp_path, layout):
    model = cased_model if layout == "sentencepiece" else multilingual_model
    content = tokenizer_json(model, layout)
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    tokenizer, original = load_tokenizer(tmp_path), UnigramTokenizer(model, layout=layout)
    assert tokenizer.get_config()["layout"] == layout
    assert tokenizer.checksum == original.checksum
    texts = corpus(20, seed=3)
    assert tokenizer.encode(texts).to_list() == original.encode(texts).to_list()
    tokenizer.save(tmp_path / "saved")
    assert load_tokenizer(tmp_path / "saved").checksum == original.checksum


@pytest.mark.parametrize("layout", ["sentencepiece", "fairseq", "camembert"])
def test_a_tokenizer_json_of_a_vocabulary(cased_model, multilingual_model, tmp_path, layout):
    """Without a table of normalisations the words are split at white space, and no more is done."""
    model = cased_model if layout == "sentencepiece" else multilingual_model
    content = tokenizer_json(model, layout)
    del content["normalizer"]["normalizers"][-1]
    for token in content["added_tokens"]:
        token |= dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    content["pre_tokenizer"]["pretokenizers"][1] |= {"replacement": "▁", "prepend_scheme": "always"}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    theirs = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    # Of ALBERT's preparation `tokenizers` drops more marks, and leaves "2012," whole.
    texts = [re.sub("[\u0900-\u097f]|[0-9],", "", text) for text in corpus(20, seed=3)]
    texts += ["the\u3000light \t of\xa0\u2009night\n", "ﬁ ① Ａ", ""]
    expected = [e.ids for e in theirs.encode_batch(texts, add_special_tokens=False)]
    assert load_tokenizer(tmp_path).encode(texts).to_list() == expected


@pytest.mark.parametrize("name", ["PreTrainedTokenizerFast", "TokenizersBackend"])
def test_of_a_general_class_the_pieces_say_whose_it_is(multilingual_model, tmp_path, name):
    """So lie multilingual models of sentence-transformers, whose encoder is a BERT."""
    content = tokenizer_json(multilingual_model, "fairseq")
    step = {"type": "RobertaProcessing", "cls": ["<s>", 0], "sep": ["</s>", 2]}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content | {"post_processor": step}))
    config = {"tokenizer_class": name, "do_lower_case": True}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.checksum == UnigramTokenizer(multilingual_model, layout="fairseq").checksum


@pytest.mark.parametrize("lowercase", [True, False, None])
@pytest.mark.parametrize("keep_accents", [True, False, None])
def test_whose_case_and_accents_count(cased_model, tmp_path, lowercase, keep_accents):
    """ALBERT's class makes its own normalizer; a general one runs the file's, which has both."""
    content = tokenizer_json(cased_model, "sentencepiece")
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    config = {"do_lower_case": lowercase, "keep_accents": keep_accents}
    config = {name: value for name, value in config.items() if value is not None}
    for name in ("AlbertTokenizer", "PreTrainedTokenizerFast"):
        written = config | {"tokenizer_class": name}
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(written))
        options = {} if name == "AlbertTokenizer" else {"preparation": True}
        found = load_tokenizer(tmp_path, **options)
        own = (config.get("do_lower_case", True), config.get("keep_accents", False))
        expected = own if name == "AlbertTokenizer" else (True, False)
        assert (found.lowercase, found.keep_accents) == expected


def test_decomposed_accents_that_stay_are_refused(cased_model, tmp_path):
    content = tokenizer_json(cased_model, "sentencepiece")
    steps = content["normalizer"]["normalizers"]
    content["normalizer"]["normalizers"] = [x for x in steps if x["type"] != "StripAccents"]
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"normalizer={'type': 'NFKD'}"):
        load_tokenizer(tmp_path)


def test_a_model_beside_a_tokenizer_json_with_others_is_refused(cased_model, tmp_path):
    content = tokenizer_json(cased_model, "sentencepiece")
    (tmp_path / "spiece.model").write_bytes(cased_model)
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    load_tokenizer(tmp_path)
    pieces = content["model"]["vocab"]
    pieces[20], pieces[21] = pieces[21], pieces[20]
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"have the same pieces.*the id 20 in tokenizer\.json"):
        load_tokenizer(tmp_path)


def test_a_table_that_is_no_base64_is_named(cased_model, tmp_path):
    content = tokenizer_json(cased_model, "sentencepiece")
    for table in ("!!!!", None, 5):
        content["normalizer"]["normalizers"][-1]["precompiled_charsmap"] = table
        (tmp_path / "tokenizer.json").write_text(json.dumps(content))
        with pytest.raises(ValueError, match="precompiled_charsmap must be base64"):
            load_tokenizer(tmp_path)


def test_a_tokenizer_json_without_its_normalisation_is_refused(cased_model, tmp_path):
    content = tokenizer_json(cased_model, "sentencepiece")
    content |= {"normalizer": None, "pre_tokenizer": {"type": "Metaspace"}}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"with 0 Precompiled; put the .model file next to it"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"pre_tokenizer": {"type": "Digits"}}, r"pre_tokenizer=\['Digits'\]"),
        ({"pre_tokenizer": {"type": "Metaspace", "prepend_scheme": "never"}}, "prepend_scheme='n"),
        ({"pre_tokenizer": {"type": "Metaspace", "add_prefix_space": False}}, "add_prefix_space=F"),
        ({"pre_tokenizer": {"type": "Metaspace", "replacement": "_"}}, "replacement='_'"),
        (
            {
                "pre_tokenizer": {
                    "type": "Sequence",
                    "pretokenizers": [
                        {"type": "WhitespaceSplit"},
                        {"type": "Metaspace", "prepend_scheme": "first"},
                    ],
                }
            },
            "prepend_scheme='first'",
        ),
        ("l", "normalizer={'type': 'Replace', 'pattern': {'String': 'l'}"),
        ("Prepend", "normalizer={'type': 'Prepend'"),
    ],
)
def test_another_pipeline_is_refused(cased_model, tmp_path, change, message):
    content = tokenizer_json(cased_model, "sentencepiece")
    if change == "l":
        content["normalizer"]["normalizers"][0]["pattern"] = {"String": "l"}
    elif change == "Prepend":
        content["normalizer"]["normalizers"].append({"type": "Prepend"})
    else:
        content |= change
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match=f"and a space before the first word.*{message}"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("number", [0, 7, 10**6, None])
def test_an_unk_id_that_is_not_the_unknown_piece_is_refused(cased_model, tmp_path, number):
    content = tokenizer_json(cased_model, "sentencepiece")
    content["model"]["unk_id"] = number
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match=f"must be the id of its unknown piece.*unk_id={number}"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"add_prefix_space": False}, "add_prefix_space=False in .*tokenizer_config.json"),
        ({"additional_special_tokens": ["<e1>"]}, "extra_special_tokens with '<e1>' in"),
        ({"extra_special_tokens": ["<e1>"]}, "extra_special_tokens with '<e1>' in"),
    ],
)
def test_settings_beside_a_model_are_refused(cased_model, tmp_path, config, message):
    (tmp_path / "spiece.model").write_bytes(cased_model)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=message):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"id": 3, "content": "dog", "special": False}, "'dog' in .* found in every text"),
        ({"id": 99999, "content": "<x>", "special": True}, "'<x>' in .*as id 99999"),
    ],
)
def test_added_tokens_are_refused(cased_model, tmp_path, entry, message):
    content = tokenizer_json(cased_model, "sentencepiece")
    content["added_tokens"].append(entry)
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match=f"WordPiece and byte-level BPE support.*{message}"):
        load_tokenizer(tmp_path)
