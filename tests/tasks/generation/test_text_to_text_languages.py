"""Folders of Marian, PEGASUS, mBART and mBART-50: texts of transformers, and other languages."""

import json

import numpy as np
import pytest

import kbert
from kbert.experiments.previews import describe_examples
from kbert.tasks import TextToText
from kbert.tokenizers import train_unigram
from tests.tokenizers.marian.test_marian import trained, vocabularies
from tests.tokenizers.unigram.sentencepiece_reference import corpus

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

SOURCES = [*corpus(4, seed=3), "the night"]
_SIDES = ("encoder", "decoder")
_SIZES = {
    **{"d_model": 32, "max_position_embeddings": 64},
    **{f"{side}_layers": 1 for side in _SIDES},
    **{f"{side}_attention_heads": 4 for side in _SIDES},
    **{f"{side}_ffn_dim": 64 for side in _SIDES},
}
KINDS = ("marian", "separate", "pegasus", "mbart", "mbart50")
GERMAN = ["der Berg und die Straße", "das schöne Häuser läuft", "Fluß und Berg"] * 40


def tokenizer_of(kind, folder):
    """Writes the published files of a tokenizer, and returns kbert's."""
    if kind in ("marian", "separate"):
        models = trained([x for x in corpus() if x.isascii()]), trained(GERMAN)
        shape = {"marian": "shared"}.get(kind, kind)
        names = ("vocab.json", "target_vocab.json")
        for name, tokens in zip(names, vocabularies(models, shape), strict=False):
            (folder / name).write_text(json.dumps({token: i for i, token in enumerate(tokens)}))
        for name, model in zip(("source.spm", "target.spm"), models, strict=True):
            (folder / name).write_bytes(model)
        config = {"source_lang": "en", "target_lang": "de", "separate_vocabs": kind == "separate"}
        config["tokenizer_class"] = "MarianTokenizer"
    else:
        layout = {"mbart50": "mbart"}.get(kind, kind)
        name = "spiece.model" if kind == "pegasus" else "sentencepiece.bpe.model"
        (folder / name).write_bytes(train_unigram(corpus(), 300, layout=layout))
        classes = {"pegasus": "Pegasus", "mbart": "MBart", "mbart50": "MBart50"}
        config = {"tokenizer_class": f"{classes[kind]}Tokenizer"}
        if kind != "pegasus":
            config |= {"src_lang": "en_XX", "tgt_lang": "de_DE"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return kbert.load_tokenizer(folder)


def folder_of(kind, folder):
    """Writes a random model with its tokenizer and how it decodes; returns model and tokenizer."""
    folder.mkdir()
    ours = tokenizer_of(kind, folder)
    target = ours.target
    ids = {"eos_token_id": ours.sep_id, "pad_token_id": ours.pad_id}
    start = {"mbart": target.suffix_ids[-1], "mbart50": target.sep_id}.get(kind, target.pad_id)
    ids |= {"decoder_start_token_id": start}
    sizes = {**_SIZES, **ids, "vocab_size": ours.vocabulary_size}
    name = {"separate": "marian", "mbart50": "mbart"}.get(kind, kind)
    if kind == "separate":
        # transformers pads targets with the source's id, which must be a row of their table.
        rows = max(target.vocabulary_size, ours.vocabulary_size)
        sizes |= {"decoder_vocab_size": rows}
        sizes |= {"share_encoder_decoder_embeddings": False}
    prefix = {"marian": "Marian", "pegasus": "Pegasus", "mbart": "MBart"}[name]
    config = getattr(transformers, f"{prefix}Config")(**sizes)
    ending = "MTModel" if name == "marian" else "ForConditionalGeneration"
    torch.manual_seed(0)
    model = getattr(transformers, prefix + ending)(config).eval()
    for path, weight in model.named_parameters():
        if weight.requires_grad:
            sigma = 1.0 if "encoder_attn." in path or "norm" in path else 0.2
            torch.nn.init.normal_(weight, 0, 0.0 if path.endswith("bias") else sigma)
    never = {target.pad_id, target.unk_id, target.cls_id, target.mask_id} - {None, start}
    never |= set(range(target.vocabulary_size, sizes.get("decoder_vocab_size", 0)))
    generation = {"max_length": 12, "min_length": 4, "num_beams": 2}
    generation["bad_words_ids"] = [[i] for i in sorted(never)]
    if kind == "mbart50":
        generation["forced_bos_token_id"] = target.prefix_ids[0]
    model.generation_config = transformers.GenerationConfig(**ids, **generation)
    model.save_pretrained(folder)
    return model, ours


@pytest.mark.parametrize("kind", KINDS)
def test_ids_equal_transformers(kind, tmp_path):
    model, _ = folder_of(kind, tmp_path / "theirs")
    task = TextToText.from_preset(tmp_path / "theirs")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "theirs")
    inputs = theirs(SOURCES, return_tensors="pt", padding=True)
    rows = task.pair_rows.sources(SOURCES).ids
    for row, ids, mask in zip(rows, inputs["input_ids"], inputs["attention_mask"], strict=True):
        assert row.tolist() == ids[mask > 0].tolist()
    ids = model.generate(
        input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"], use_cache=False
    ).numpy()
    method, longest, rules = task.decoding_settings()
    width = max(map(len, rows))
    decoded = task.decode(task.pair_rows.features(rows, width), method, longest, None, rules)
    lengths = np.asarray(decoded.lengths)[:, 0]
    for found, length, expected in zip(
        np.asarray(decoded.token_ids)[:, 0], lengths, ids[:, 1:], strict=True
    ):
        assert found[:length].tolist() == expected[:length].tolist()
    assert len({tuple(row) for row in ids.tolist()}) > 1
    # Decoding has no special tokens in it, whatever the language.
    assert not any("_" in text or "</s>" in text for text in task.predict(SOURCES))


@pytest.mark.parametrize("kind", KINDS)
def test_targets_are_framed_as_transformers_shifts_them(kind, tmp_path):
    model, _ = folder_of(kind, tmp_path / "theirs")
    task = TextToText.from_preset(tmp_path / "theirs", new_head=True)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "theirs")
    targets = ["der Berg", "das"] if kind in ("marian", "separate") else ["the night", "of"]
    labels = theirs(text_target=targets)["input_ids"]
    rows = task.tokenize(task.as_table(SOURCES[:2], targets), labelled=True)
    batch = {name: np.asarray(x) for name, x in task.assemble(rows.gather([0, 1])).items()}
    for row, mask, expected in zip(
        batch["targets"], batch["decoder_padding_mask"], labels, strict=True
    ):
        assert row[mask > 0].tolist() == expected
    # Marian's pads differ between the sides, see above.
    if kind not in (
        "mbart50",
        "separate",
    ):  # transformers moves the end of the row, not the language, to the front
        shifted = model.prepare_decoder_input_ids_from_labels(torch.tensor(batch["targets"]))
        mask = batch["decoder_padding_mask"] > 0
        np.testing.assert_array_equal(batch["decoder_token_ids"][mask], shifted.numpy()[mask])
    loss = task.fit(SOURCES[:2], targets, epochs=1, batch_size=2, verbose=0).history["loss"]
    assert np.isfinite(loss).all()


def test_another_language_is_chosen_in_the_tokenizer(tmp_path):
    folder_of("mbart50", tmp_path / "theirs")
    task = TextToText.from_preset(tmp_path / "theirs")
    tokenizer = task.tokenizer.with_languages(source="fr_XX", target="ro_RO")
    # The folder forces German, the tokenizer Romanian.
    settings = {"special_tokens": "all", "generation": task.generation}
    other = TextToText(task.seq2seq, tokenizer, **settings)
    assert other.framing.source.begin == (tokenizer.token_to_id("fr_XX"),)
    assert other.framing.target.begin == (tokenizer.token_to_id("ro_RO"),)
    romanian = tokenizer.token_to_id("ro_RO")
    assert other.decoding_settings()[2].forced_first_id == romanian
    assert task.decoding_settings()[2].forced_first_id == tokenizer.token_to_id("de_DE")
    other.save_to_preset(tmp_path / "back", "huggingface")
    written = json.loads((tmp_path / "back" / "generation_config.json").read_text())
    assert written["forced_bos_token_id"] == romanian


def test_the_start_of_mbart_is_the_tokenizer_s_language(tmp_path):
    folder_of("mbart", tmp_path / "theirs")
    task = TextToText.from_preset(tmp_path / "theirs")
    tokenizer = task.tokenizer.with_languages(target="ro_RO")
    other = TextToText(task.seq2seq, tokenizer, special_tokens="all", generation=task.generation)
    assert other.framing.start_id == tokenizer.token_to_id("ro_RO") != task.framing.start_id
    other.save_to_preset(tmp_path / "back", "huggingface")
    for name in ("config.json", "generation_config.json"):
        written = json.loads((tmp_path / "back" / name).read_text())
        assert written["decoder_start_token_id"] == other.framing.start_id


def test_a_preview_names_targets_by_their_own_vocabulary(tmp_path):
    _, tokenizer = folder_of("separate", tmp_path / "theirs")
    task = TextToText.from_preset(tmp_path / "theirs")
    table = task.as_table(["the night"], ["der Berg"])
    target = tokenizer.target
    pieces = [target.id_to_token(i) for i in target("der Berg").numpy().tolist()]
    assert " ".join(pieces) in describe_examples(task, table)


def test_a_decoder_with_a_table_of_its_own_needs_a_tokenizer_of_its_own(tmp_path):
    _, tokenizer = folder_of("separate", tmp_path / "theirs")
    model = kbert.Seq2Seq.from_preset(tmp_path / "theirs")
    with pytest.raises(ValueError, match=r"fit the decoder's table.*Received: .*decoder alone"):
        TextToText(model, tokenizer.target)
