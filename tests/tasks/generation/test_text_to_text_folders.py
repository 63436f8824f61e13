"""Folders of BART and T5: the texts of transformers' `generate`, by `generation_config.json`."""

import io
import json

import pytest

import kbert
from kbert.decoding import Beam
from kbert.tasks import TextToText

tokenizers = pytest.importorskip("tokenizers")
sentencepiece = pytest.importorskip("sentencepiece")
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

TEXTS = [
    "the cat sat on the mat and the dog ran",
    "a man with a hat reads a book in the park",
    "two dogs play in the snow near a house",
]
SOURCES = [
    "the cat sat",
    "a man with a hat reads a book in the snow",
    "dogs",
    "a house near the park",
]
_SIZES = {"d_model": 32, "vocab_size": 300}
_BART = {
    **_SIZES,
    **{f"{side}_layers": 2 for side in ("encoder", "decoder")},
    **{f"{side}_attention_heads": 4 for side in ("encoder", "decoder")},
    **{f"{side}_ffn_dim": 64 for side in ("encoder", "decoder")},
    "max_position_embeddings": 64,
}
_BART_IDS = {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2}
_T5 = {**_SIZES, "d_ff": 64, "d_kv": 8, "num_heads": 4, "num_layers": 2, "n_positions": 64}
_T5_IDS = {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0}
# What kbert never generates, which random models otherwise would.
_NEVER = {"bart": [1, 3, 4], "t5": [0, 2]}
GENERATION = {
    "greedy": {"max_length": 16, "min_length": 6},
    "beam": {
        **{"num_beams": 4, "no_repeat_ngram_size": 3, "min_length": 6, "max_length": 16},
        **{"length_penalty": 2.0, "early_stopping": True},
    },
}


def bart_tokenizer(folder):
    own = tokenizers.Tokenizer(tokenizers.models.BPE())
    own.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    own.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<s>", "<pad>", "</s>", "<unk>", "<mask>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
    )
    own.train_from_iterator(TEXTS * 20, trainer)
    own.post_processor = tokenizers.processors.RobertaProcessing(
        ("</s>", 2), ("<s>", 0), add_prefix_space=False
    )
    special = {"bos": "<s>", "eos": "</s>", "unk": "<unk>", "pad": "<pad>", "mask": "<mask>"}
    theirs = transformers.PreTrainedTokenizerFast(
        tokenizer_object=own,
        cls_token="<s>",
        sep_token="</s>",
        **{f"{name}_token": token for name, token in special.items()},
    )
    theirs.save_pretrained(folder)
    return theirs


def t5_tokenizer(folder):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS * 5), model_writer=model, vocab_size=60, minloglevel=2,
        hard_vocab_limit=False, pad_id=0, eos_id=1, unk_id=2, bos_id=-1,
    )  # fmt: skip
    folder.mkdir(exist_ok=True)
    (folder / "spiece.model").write_bytes(model.getvalue())
    return transformers.T5Tokenizer.from_pretrained(folder)


def folder_of(kind, folder, **generation):
    """Writes a random model, its tokenizer and how it decodes; returns the first two."""
    if kind == "bart":
        tokenizer, ids = bart_tokenizer(folder), {**_BART_IDS, "forced_bos_token_id": 0}
        config, cls = transformers.BartConfig(**_BART), transformers.BartForConditionalGeneration
    else:
        tokenizer, ids = t5_tokenizer(folder), _T5_IDS
        config, cls = transformers.T5Config(**_T5), transformers.T5ForConditionalGeneration
    torch.manual_seed(0)
    model = cls(config).eval()
    for name, weight in model.named_parameters():
        reads_source = "encoder_attn." in name or "EncDecAttention" in name
        sigma = 0.05 if name.endswith("bias") else 0.2
        torch.nn.init.normal_(weight, 0, 1.0 if reads_source or "norm" in name else sigma)
        if "norm" in name and name.endswith("bias"):
            torch.nn.init.zeros_(weight)
    # Rows without a token, and T5's sentinels, which its decoder would hide.
    unused = range(len(tokenizer) - 100 * (kind == "t5"), config.vocab_size)
    banned = [[i] for i in (*_NEVER[kind], *unused)]
    model.generation_config = transformers.GenerationConfig(
        bad_words_ids=banned, **ids, **generation
    )
    model.save_pretrained(folder)
    return model, tokenizer


def answers_of(model, tokenizer, sources):
    inputs = tokenizer(sources, return_tensors="pt", padding=True)
    # transformers' cache of T5 does not fit every depth.
    ids = model.generate(
        input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"], use_cache=False
    )
    return [text.strip() for text in tokenizer.batch_decode(ids, skip_special_tokens=True)]


def plain(text):
    """The text with single spaces: a piece of T5 may be a space alone."""
    return " ".join(text.split())


@pytest.mark.parametrize("generation", GENERATION)
@pytest.mark.parametrize("kind", ["bart", "t5"])
def test_texts_equal_transformers_there_and_back(kind, generation, tmp_path):
    model, tokenizer = folder_of(kind, tmp_path / "theirs", **GENERATION[generation])
    task = kbert.tasks.Task.from_preset(tmp_path / "theirs")
    assert type(task) is TextToText
    for source, ids in zip(SOURCES, task.pair_rows.sources(SOURCES).ids, strict=True):
        assert ids.tolist() == tokenizer(source)["input_ids"]
    expected = answers_of(model, tokenizer, SOURCES)
    assert len(set(expected)) > 1
    assert [plain(text) for text in task.predict(SOURCES)] == [plain(text) for text in expected]
    expected = task.predict(SOURCES)
    task.save_to_preset(tmp_path / "kbert")
    assert TextToText.from_preset(tmp_path / "kbert").predict(SOURCES) == expected
    task.save_to_preset(tmp_path / "back", "huggingface")
    back = type(model).from_pretrained(tmp_path / "back")
    again = transformers.AutoTokenizer.from_pretrained(tmp_path / "back")
    assert [*map(plain, answers_of(back, again, SOURCES))] == [*map(plain, expected)]


def test_the_folder_of_a_task_decodes_as_the_task(tmp_path, caplog):
    folder_of("bart", tmp_path / "theirs", max_length=12)
    for number, changes in enumerate(
        ({"beam_width": 3}, {"generation": {**_BART_IDS, "do_sample": True, "top_k": 5}})
    ):
        task = TextToText.from_preset(tmp_path / "theirs", **changes)
        task.save_to_preset(tmp_path / str(number), "huggingface")
        again = TextToText.from_preset(tmp_path / str(number))
        assert again.decoding_settings()[0] == task.decoding_settings()[0]
    assert "length penalty" not in caplog.text
    translator = kbert.Translator(task.seq2seq, task.tokenizer, special_tokens="all")
    translator.save_to_preset(tmp_path / "beam", "huggingface")
    assert "transformers has no length penalty of Wu et al." in caplog.text
    method = kbert.tasks.Task.from_preset(tmp_path / "beam").decoding_settings()[0]
    assert method == Beam(4, 0.6, normalisation="length", early_stopping="never")
    file = json.loads((tmp_path / "beam/generation_config.json").read_text())
    assert (file["num_beams"], file["early_stopping"]) == (4, "never")


@pytest.mark.parametrize("kind", ["bart", "t5"])
def test_a_new_task_trains_and_decodes_with_the_model_s_tokens(kind, tmp_path):
    folder_of(kind, tmp_path / "theirs", max_length=16)
    task = TextToText.from_preset(tmp_path / "theirs", new_head=True, prefix="a: ")
    start = {"bart": 2, "t5": 0}[kind]
    assert (task.framing.start_id, len(task.framing.source)) == (start, 1 + (kind == "bart"))
    pairs = [(text, text.split()[1]) for text in TEXTS]
    how = {"epochs": 60, "batch_size": 3, "learning_rate": 1e-2, "verbose": 0}
    losses = task.fit(pairs, **how).history["loss"]
    assert losses[-1] < 0.8 * losses[0]
    rows = task.tokenize(task.as_table(pairs), labelled=True)
    batch = task.assemble(rows.gather([0, 1, 2]))
    assert set(batch["decoder_token_ids"][:, 0].numpy().tolist()) == {start}


def test_a_config_without_the_file_says_how_texts_are_decoded(tmp_path):
    folder_of("bart", tmp_path)
    (tmp_path / "generation_config.json").unlink()
    config = json.loads((tmp_path / "config.json").read_text())
    config |= {"num_beams": 4, "max_length": 12, "decoder_start_token_id": 2, "use_cache": True}
    (tmp_path / "config.json").write_text(json.dumps(config))
    method, longest, _ = TextToText.from_preset(tmp_path).decoding_settings()
    assert (method.width, longest) == (4, 11)
    config["encoder_no_repeat_ngram_size"] = 3
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(
        ValueError, match=r"`encoder_no_repeat_ngram_size` changes texts and is not"
    ):
        TextToText.from_preset(tmp_path)
    assert TextToText.from_preset(tmp_path, generation={"decoder_start_token_id": 2})
