"""Loading a SentencePiece unigram tokenizer from kbert's, Hugging Face's or Google's folders."""

from collections.abc import Mapping, Sequence
from typing import Any

from absl import logging

from kbert.io.paths import Path, read_settings
from kbert.tokenizers.folder import TokenizerFolder
from kbert.tokenizers.unigram.layouts import LAYOUTS, PEGASUS_OFFSET, PREPARED, layout_of
from kbert.tokenizers.unigram.model import SPACE, model_of_tokenizer_json, read_model
from kbert.tokenizers.unigram.tokenizer import CONFIG_KEYS, UnigramTokenizer

# Hugging Face's classes -> default arguments for settings that a folder's files do not have.
_CLASSES: dict[str, dict[str, Any]] = {
    "AlbertTokenizer": {"layout": "sentencepiece", "lowercase": True, "keep_accents": False},
    "XLNetTokenizer": {"layout": "sentencepiece", "lowercase": False, "keep_accents": False},
    **{layout.saved_as[0]: {"layout": name} for name, layout in LAYOUTS.items() if layout.saved_as},
}
_MODEL_TYPES: dict[str | None, str] = {
    "albert": "AlbertTokenizer",
    "xlnet": "XLNetTokenizer",
    "xlm-roberta": "XLMRobertaTokenizer",
    "camembert": "CamembertTokenizer",
    "deberta-v2": "DebertaV2Tokenizer",
    "t5": "T5Tokenizer",
    "mt5": "T5Tokenizer",
    "pegasus": "PegasusTokenizer",
    "mbart": "MBartTokenizer",
}
# For these classes transformers 5 builds the normalizer from tokenizer_config.json and defaults.
_OWN_PIPELINE = frozenset(name.removesuffix("Tokenizer") for name in _CLASSES)
# Classes that run any tokenizer.json: the kind is inferred from the pieces.
_GENERAL = ("", "PreTrainedTokenizer", "TokenizersBackend")
# Classes of other models that some folders name next to a unigram tokenizer.json.
_OTHER_MODELS = ("BertTokenizer", "RobertaTokenizer")
# Normalizer steps of tokenizer.json that `UnigramTokenizer` supports, and supported replacements.
_NORMALIZERS = ("Lowercase", "NFKD", "Precompiled", "Replace", "Strip", "StripAccents")
_REPLACED = (("``", '"'), ("''", '"'), (" {2,}", " "), (" {2,}", "▁"))
# Settings of texts that only the preparation has -> the values that need it.
_PREPARING = {"lowercase": True, "keep_accents": False}
_SETTINGS = ("preparation", "layout", "special_tokens_in_text")


def load_unigram(
    folder: TokenizerFolder, path: Path | None = None, **options: Any
) -> UnigramTokenizer:
    """Loads the tokenizer of a folder with a SentencePiece model or a unigram tokenizer.json.

    Args:
        folder: the files of the folder.
        path: the SentencePiece model; None = the only one of the folder.
        options: arguments of `UnigramTokenizer` that override the files.

    Raises:
        ValueError: a damaged model, or one whose text preparation is unknown.
    """
    path = path or folder.model_file
    if path is not None:
        model = read_settings(path)
        pieces = [piece.piece for piece in read_model(path).pieces]
    else:
        path = folder.path / "tokenizer.json"
        model = model_of_tokenizer_json(folder)
        pieces = [piece for piece, _ in folder.full["model"]["vocab"]]
    if folder.config.get("split_by_punct"):
        raise ValueError(
            "A unigram tokenizer does not support splitting off punctuation before the model. "
            f"Received: split_by_punct={folder.config['split_by_punct']!r} in {folder.path}"
        )
    if folder.config.get("add_prefix_space", True) is False:
        raise ValueError(
            "A unigram model must put a space before the first word, as its authors' code does. "
            f"Received: add_prefix_space=False in {folder.path / 'tokenizer_config.json'}"
        )
    if folder.config.get("offset", PEGASUS_OFFSET) != PEGASUS_OFFSET:
        raise ValueError(
            f"PEGASUS' tokenizer must have {PEGASUS_OFFSET} ids before those of its model. "
            f"Received: offset={folder.config['offset']!r} in {folder.path}"
        )
    settings: dict[str, Any] = {"special_tokens": folder.special_tokens()}
    name = _class_name(folder, path, pieces)
    if name in _CLASSES:
        settings |= _CLASSES[name]
        if name == "T5Tokenizer" and options.get("layout", "t5") == "t5":
            settings["num_sentinels"] = _num_sentinels(folder)
    elif "preparation" not in options:
        raise ValueError(
            f"The text preparation before SentencePiece is known only for {', '.join(_CLASSES)}. "
            "Pass preparation=False for none, or True for ALBERT's, and layout= if the ids are not "
            f"the model's ('fairseq': XLM-R's). Received: {path} of class {name or 'unknown'}"
        )
    has_own_pipeline = folder.is_of(_OWN_PIPELINE, {x for x in _MODEL_TYPES if x})
    _check_pipeline(folder)
    settings |= _named(folder, has_own_pipeline)
    if has_own_pipeline and not (settings | options).get("preparation"):
        settings = _without_preparing(folder, name, settings)
    try:
        tokenizer = UnigramTokenizer(model, **(settings | options))
    except ValueError as error:
        raise ValueError(f"{error} in {path}") from error
    _check_pieces(folder, tokenizer.vocabulary)
    folder.refuse_added(tokenizer.vocabulary)
    # Only for ALBERT does the template of tokenizer.json override that of the class.
    folder.check_rows(tokenizer, own_template=has_own_pipeline and name != "AlbertTokenizer")
    return tokenizer


def _without_preparing(
    folder: TokenizerFolder, name: str, settings: dict[str, Any]
) -> dict[str, Any]:
    """Returns the settings without those that class `name` of transformers ignores, and logs them.

    Raises ValueError if DeBERTa's texts are to be lower-cased.
    """
    if settings.get("layout") in PREPARED:
        return settings
    path = folder.path / "tokenizer_config.json"
    ignored = {x for x, value in _PREPARING.items() if settings.get(x) is value}
    if name == "DebertaV2Tokenizer" and "lowercase" in ignored:
        raise ValueError(
            "DeBERTa's texts must not be lower-cased: kbert supports `do_lower_case` only for "
            f"ALBERT and XLNet. Received: do_lower_case=True in {path}"
        )
    for setting in sorted(ignored):
        logging.info(
            "%s: `%s` has no effect, as %s of transformers ignores it",
            path, CONFIG_KEYS[setting], name,
        )  # fmt: skip
    return {x: value for x, value in settings.items() if x not in ignored}


def _num_sentinels(folder: TokenizerFolder) -> int | None:
    """Returns the number of T5's sentinels that the files set or list; None = the usual number."""
    listed = {*folder.specials_without_role(), *(x["content"] for x in folder.added_tokens())}
    number = sum(token.startswith("<extra_id_") for token in listed)
    return folder.config.get("extra_ids", number or None)


def _check_pieces(folder: TokenizerFolder, vocabulary: Sequence[str]) -> None:
    """Raises ValueError if tokenizer.json has another piece than `vocabulary` for the same id.

    Does nothing if the folder has no unigram tokenizer.json.
    """
    model = folder.full.get("model") or {}
    if model.get("type") != "Unigram":
        return
    for number, ((json_piece, _), model_piece) in enumerate(
        zip(model["vocab"], vocabulary, strict=False)
    ):
        if json_piece != model_piece:
            raise ValueError(
                "A SentencePiece model and tokenizer.json of a folder must have the same pieces. "
                f"Received: {json_piece!r} with the id {number} in tokenizer.json, and "
                f"{model_piece!r} in the model of {folder.path}"
            )


def _check_pipeline(folder: TokenizerFolder) -> None:
    """Raises ValueError if a unigram tokenizer.json prepares texts in an unsupported way."""
    if (folder.full.get("model") or {}).get("type") != "Unigram":
        return
    unsupported_steps = [step for step in folder.normalizers() if step["type"] not in _NORMALIZERS]
    unsupported_steps += [step for step in folder.normalizers() if not _is_usual(step)]
    decomposed = [x for x in folder.normalizers() if x["type"] in ("NFKD", "StripAccents")]
    if len({step["type"] for step in decomposed}) == 1:  # dropping accents needs both steps
        unsupported_steps += decomposed
    unsupported: dict[str, Any] = {"normalizer": unsupported_steps[0]} if unsupported_steps else {}
    steps = folder.pre_tokenizers()
    kinds = [step.get("type") for step in steps]
    if kinds not in (["Metaspace"], ["WhitespaceSplit", "Metaspace"]):
        unsupported["pre_tokenizer"] = kinds
    else:
        # If words are split first, "first" would put a space before the first word only.
        schemes = ("always", "first") if kinds == ["Metaspace"] else ("always",)
        usual = {"prepend_scheme": schemes, "add_prefix_space": (True,), "replacement": (SPACE,)}
        settings = {name: steps[-1].get(name, values[0]) for name, values in usual.items()}
        unsupported |= {name: value for name, value in settings.items() if value not in usual[name]}
    folder.refuse(
        "Texts must be prepared for a unigram model as ALBERT's, XLNet's, XLM-R's and DeBERTa's "
        "are: quotes and spaces replaced, accents, case, the model's own table, and a space "
        "before the first word (Metaspace)",
        unsupported,
    )


def _is_usual(step: Mapping[str, Any]) -> bool:
    """Whether a normalizer step is no "Replace", or one of doubled quotes or repeated spaces."""
    if step["type"] != "Replace":
        return True
    pattern = step.get("pattern")
    searched_text = next(iter(pattern.values()), None) if isinstance(pattern, dict) else pattern
    return (searched_text, step.get("content")) in _REPLACED


def _class_name(folder: TokenizerFolder, path: Path, pieces: list[str]) -> str:
    """Returns the name of the tokenizer's class in transformers; "" if it is unknown.

    Files that name a class or a model type decide, or else the pieces and the name of the model
    file, `path`: the original releases of ALBERT and XLNet contain only the model.
    """
    name = folder.class_name
    if name not in _CLASSES:
        name = _MODEL_TYPES.get(folder.model_config.get("model_type"), name)
    if name in _OTHER_MODELS and path.name == "tokenizer.json":
        folder.warn_read_as_written(path, name, "unigram")
        name = "PreTrainedTokenizer"
    if name in _GENERAL:
        layout = layout_of(pieces)
        if layout is None and path.name == "sentencepiece.bpe.model":
            layout = "fairseq"
            logging.warning(
                "%s: assumed to be XLM-R's because of its name only; for CamemBERT, whose ids "
                "are one higher, and mBART pass "
                'layout="camembert", "mbart" or "mbart50", or put its config.json next to it',
                path,
            )
        for own in ("deberta", "t5") if layout is None else ():
            if tuple(pieces[: len(LAYOUTS[own].first)]) == LAYOUTS[own].first:
                layout = own
        if layout == "t5" and path.name != "tokenizer.json":
            logging.warning(
                "%s: assumed to be T5's because of its first pieces only; for PEGASUS pass "
                'layout="pegasus", or put its config.json next to it',
                path,
            )
        saved_as = LAYOUTS[layout].saved_as if layout else None
        if saved_as:
            name = saved_as[0]
        elif not name and {"[CLS]", "<cls>"} & set(pieces):
            name = "AlbertTokenizer" if "[CLS]" in pieces else "XLNetTokenizer"
    return name


def _named(folder: TokenizerFolder, own: bool) -> dict[str, Any]:
    """Returns the arguments of `UnigramTokenizer` that the files set: name -> value.

    `own`: whether transformers ignores the normalizer of tokenizer.json for this class. Otherwise
    that normalizer overrides tokenizer_config.json.
    """
    names = CONFIG_KEYS | {name: name for name in _SETTINGS}
    config_settings = {
        name: folder.config[key] for name, key in names.items() if key in folder.config
    }
    kinds = {step["type"] for step in folder.normalizers()}
    if "Precompiled" in kinds or (folder.full.get("model") or {}).get("type") == "Unigram":
        json_settings = {
            "lowercase": "Lowercase" in kinds,
            "keep_accents": "StripAccents" not in kinds,
        }
        if not own:
            return config_settings | json_settings
        logging.info(
            "%s: case and accents follow the tokenizer's class and its settings, as in "
            "transformers; tokenizer.json's normalizer has %s",
            folder.path, json_settings,
        )  # fmt: skip
    return config_settings
