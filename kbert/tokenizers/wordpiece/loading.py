"""Loading a WordPiece tokenizer from a folder: kbert's, Hugging Face's or Google's."""

from typing import Any

from absl import logging

from kbert.tokenizers.base import ROLES
from kbert.tokenizers.folder import (
    BYTE_PAIR_CLASSES,
    BYTE_PAIR_TYPES,
    FLAG,
    Form,
    TokenizerFolder,
    check_forms,
)
from kbert.tokenizers.wordpiece.tokenizer import CONFIG_KEYS, WordPieceTokenizer
from kbert.tokenizers.wordpiece.vocab_txt import (
    FAIRSEQ_TOKENS,
    SPECIAL_TOKENS,
    read_vocabulary,
    special_tokens,
)
from kbert.tokenizers.wordpiece.without_tensorflow import WordSpacing

# Hugging Face's classes that split words as BERT's does; `_SEGMENTERS` use other programs.
_AS_BERT = frozenset(
    "Bert BertLegacy ConvBert DPRContextEncoder DPRQuestionEncoder DPRReader DistilBert Electra "
    "Ernie Funnel LayoutLM LayoutLMv2 Lxmert MPNet MegatronBert MobileBert PreTrained RetriBert "
    "Splinter SqueezeBert TinyBert TokenizersBackend".split()
)
# For these classes transformers 5 builds the normalizer and the template from tokenizer_config.json
# and defaults, and uses only the vocabulary of tokenizer.json; for the others it uses all of it.
_OWN_PIPELINE = frozenset(
    "Bert DPRContextEncoder DPRQuestionEncoder DPRReader DistilBert Electra Funnel LayoutLM Lxmert "
    "MPNet MobileBert Splinter SqueezeBert".split()
)
# If no class is named: model types whose tokenizer is of such a class.
_OWN_PIPELINE_TYPES = frozenset(
    "bert convbert distilbert dpr electra ernie funnel layoutlm lxmert megatron-bert mobilebert "
    "mpnet nomic_bert splinter squeezebert".split()
)
_DEFAULTS = {"lowercase": True, "strip_accents": None, "split_chinese": True}
# The kernel counts bytes in 32 bits.
_LENGTH: Form = ("a whole number from 1 to 1,000,000", lambda x: type(x) is int and 0 < x <= 10**6)
_SEGMENTERS = ("BertJapanese", "RoFormer")
# Settings of the Python tokenizer classes -> the values that change nothing.
_BASIC: dict[str, tuple[Any, ...]] = {
    "do_basic_tokenize": (True, None),
    "word_tokenizer_type": ("basic", None),
    "subword_tokenizer_type": ("wordpiece", None),
}


def load_wordpiece(folder: TokenizerFolder, **options: Any) -> WordPieceTokenizer:
    """Loads the tokenizer of a folder with vocab.txt, or with tokenizer.json alone.

    Args:
        folder: the files of the folder.
        options: arguments of `WordPieceTokenizer` that override the files.

    Raises:
        ValueError: an invalid vocabulary, or files that contradict each other or need a feature
            that `WordPieceTokenizer` does not support.
    """
    path = folder.path / "vocab.txt"
    vocabulary = read_vocabulary(path) if path.is_file() else _of_tokenizer_json(folder)
    _check_words(folder)
    settings = _settings(folder)
    _check_roles(folder, vocabulary)
    _check_pipeline(folder, vocabulary)
    if "lowercase" not in settings and "lowercase" not in options:
        settings["lowercase"] = not _has_upper_case(vocabulary)
        logging.info(
            "%s: no file specifies whether texts are lower-cased; guessed from the vocabulary: "
            "lowercase=%s",
            folder.path, settings["lowercase"],
        )  # fmt: skip
    model_pieces = {*((folder.full.get("model") or {}).get("vocab") or vocabulary)}
    vocabulary, added = _with_added_tokens(folder, vocabulary)
    if "special_tokens_in_text" not in folder.config:  # kbert saves all settings
        added |= _added_pieces(added.get("added_tokens", []), model_pieces)
    tokenizer = WordPieceTokenizer(vocabulary, **(settings | added | options))
    folder.check_rows(tokenizer, own_template=_has_own_pipeline(folder))
    return tokenizer


def _check_roles(folder: TokenizerFolder, vocabulary: list[str]) -> None:
    """Raises ValueError if a folder names other special tokens than the vocabulary's usual ones."""
    usual = dict(zip(ROLES, special_tokens(vocabulary), strict=True))
    for role, token in folder.special_tokens().items():
        if usual.get(role, token) != token:
            raise ValueError(
                f"The {role} token of a WordPiece tokenizer must be {usual[role]}. Received: "
                f"{token!r} in {folder.path}"
            )


def _check_pipeline(folder: TokenizerFolder, vocabulary: list[str]) -> None:
    """Raises ValueError if tokenizer.json needs more than BERT's normalizer and word splitting.

    Raises too if it has other ids than `vocabulary`, the tokens in the order of their ids.
    """
    if not (model := folder.full.get("model")):  # KerasHub has a different file of that name
        return
    has_own_pipeline = _has_own_pipeline(folder)
    kinds = [step["type"] for step in folder.normalizers()]
    words = [step.get("type") for step in folder.pre_tokenizers()]
    prefix = model.get("continuing_subword_prefix", "##")
    usual = special_tokens(vocabulary)[ROLES.index("unk")]
    unknown = model.get("unk_token", usual)
    settings = {
        "type": (model["type"], model["type"] != "WordPiece"),
        "normalizer": (kinds, not has_own_pipeline and kinds != ["BertNormalizer"]),
        "clean_text": (
            False,
            not has_own_pipeline
            and any(x.get("clean_text") is False for x in folder.normalizers()),
        ),
        "pre_tokenizer": (words, not has_own_pipeline and words != ["BertPreTokenizer"]),
        "continuing_subword_prefix": (prefix, prefix != "##"),
        "unk_token": (unknown, unknown != usual),
    }
    folder.refuse(
        "WordPiece must have BERT's normalizer and words (BertNormalizer, BertPreTokenizer)",
        {name: value for name, (value, is_other) in settings.items() if is_other},
    )
    added = {entry["content"] for entry in folder.added_tokens()}
    id_of = {piece: number for number, piece in enumerate(vocabulary)}
    for piece, number in model.get("vocab", {}).items():
        if id_of.get(piece, number if piece in added else None) != number:
            raise ValueError(
                "vocab.txt and tokenizer.json of a folder must have the same tokens. Received: "
                f"{piece!r} with the id {number} in tokenizer.json, and {id_of.get(piece)} in "
                f"vocab.txt of {folder.path}"
            )


def _with_added_tokens(
    folder: TokenizerFolder, vocabulary: list[str]
) -> tuple[list[str], dict[str, Any]]:
    """Returns the vocabulary with the folder's added tokens, and the arguments that name them.

    The arguments are `added_tokens`, `normalized_tokens` and `single_word_tokens` of
    `WordPieceTokenizer`, without empty ones. Raises ValueError if ids have gaps.
    """
    roles, ids = special_tokens(vocabulary), {token: i for i, token in enumerate(vocabulary)}
    pieces = list(vocabulary)
    added = [entry for entry in folder.added_tokens() if entry["content"] not in roles]
    listed = {entry["content"] for entry in added}
    unlisted = sorted(folder.specials_without_role() - {*roles, *listed})
    for entry in sorted(added, key=lambda entry: entry["id"]):
        token, number = entry["content"], ids.setdefault(entry["content"], entry["id"])
        if number > len(pieces):
            raise ValueError(
                f"Added tokens must follow the vocabulary without gaps. Received: {token!r} with "
                f"the id {number} after {len(pieces)} pieces in {folder.path}"
            )
        if number == len(pieces):
            pieces.append(token)
    pieces += [token for token in unlisted if token not in ids]
    specials = folder.specials_without_role()
    late = [
        entry["content"]
        for entry in added
        if entry.get("normalized", not entry.get("special", entry["content"] in specials))
    ]
    single = [entry["content"] for entry in added if entry.get("single_word")]
    arguments = {
        "added_tokens": [*listed, *unlisted],
        "normalized_tokens": late,
        "single_word_tokens": single,
    }
    return pieces, {name: tokens for name, tokens in arguments.items() if tokens}


def _added_pieces(added_tokens: list[str], model_pieces: set[str]) -> dict[str, Any]:
    """Returns the argument `added_pieces`, without which there are none.

    In Hugging Face's files an added token that the model's vocabulary has too is still a word
    piece. Tokens such as "[unused1]" are left out: no word of a text equals them.

    Args:
        added_tokens: the added tokens.
        model_pieces: vocabulary of the WordPiece model, which may lack added tokens.
    """
    spaced = WordSpacing(False, False, False)
    bare = {token: token.removeprefix("##") for token in model_pieces.intersection(added_tokens)}
    pieces = [token for token, word in bare.items() if spaced(word).split() == [word]]
    return {"added_pieces": pieces} if pieces else {}


def _check_words(folder: TokenizerFolder) -> None:
    """Raises ValueError if words are split by other rules than BERT's, such as jieba's.

    tokenizer.json and, without it, the tokenizer's class and settings define the rules.
    """
    class_name, stem = folder.class_name, folder.stem
    if not class_name:
        model_type = folder.model_config.get("model_type")
        class_name = "RoFormerTokenizer" if model_type == "roformer" else "BertTokenizer"
        stem = class_name.removesuffix("Tokenizer")
    if folder.full.get("model") and stem not in _SEGMENTERS:
        # tokenizer.json defines how words are split, and is checked
        if folder.is_of(BYTE_PAIR_CLASSES, BYTE_PAIR_TYPES):
            name = folder.class_name or folder.model_config["model_type"]
            folder.warn_read_as_written(folder.path / "tokenizer.json", name, "WordPiece")
        return
    unsupported: dict[str, Any] = {} if stem in _AS_BERT else {"tokenizer_class": class_name}
    unsupported |= {k: folder.config[k] for k in _BASIC if folder.config.get(k) not in _BASIC[k]}
    specials = {*folder.special_tokens().values(), *SPECIAL_TOKENS, *FAIRSEQ_TOKENS}
    if never_split := sorted({*(folder.config.get("never_split") or ())} - specials):
        unsupported["never_split"] = never_split
    if unsupported:
        received = ", ".join(f"{name}={value!r}" for name, value in unsupported.items())
        raise ValueError(
            "WordPiece requires BERT's words; words that Python programs such as jieba and MeCab "
            "split are not supported in a graph. kbert.Encoder.from_preset loads the model "
            "without its tokenizer; if the words are BERT's, set "
            '"tokenizer_class": "BertTokenizer" in tokenizer_config.json. '
            f"Received: {received} in {folder.path}"
        )


def _of_tokenizer_json(folder: TokenizerFolder) -> list[str]:
    """Returns the tokens of Hugging Face's tokenizer.json in the order of their ids.

    Without a post-processor, the special tokens that the vocabulary lacks are appended. Raises
    ValueError if the ids have gaps, or "##" does not continue words.
    """
    model, path = folder.full["model"], folder.path / "tokenizer.json"
    prefix = model.get("continuing_subword_prefix")
    if prefix != "##":
        raise ValueError(
            f'WordPiece must continue words with "##". Received: {path} with {prefix!r}'
        )
    ids = model.get("vocab", {})
    if not isinstance(ids, dict) or sorted(ids.values()) != list(range(len(ids))):
        raise ValueError(f"Ids of a vocabulary must run from 0 without gaps. Received: {path}")
    pieces = sorted(ids, key=ids.__getitem__)
    if not folder.full.get("post_processor"):  # no tokens around texts: they may be missing
        pieces += [token for token in special_tokens(pieces) if token not in ids]
    return pieces


def _settings(folder: TokenizerFolder) -> dict[str, Any]:
    """Returns the arguments of `WordPieceTokenizer` that the files set: name -> value."""
    config, path = folder.config, folder.path / "tokenizer.json"
    settings = {name: config[key] for name, key in CONFIG_KEYS.items() if key in config}
    own = ("special_tokens_in_text", "added_pieces")  # of kbert only
    settings |= {name: config[name] for name in own if name in config}
    model = folder.full.get("model") or {}
    check_forms(model, {"max_input_chars_per_word": _LENGTH}, path)
    if "max_input_chars_per_word" in model:
        settings["max_word_characters"] = model["max_input_chars_per_word"]
    for step in folder.normalizers():
        names = ("lowercase", "strip_accents", "handle_chinese_chars")
        check_forms(step, dict.fromkeys(names, FLAG), path)
        json_settings = {
            "lowercase": step.get("lowercase", True),
            "strip_accents": step.get("strip_accents"),
            "split_chinese": step.get("handle_chinese_chars", True),
        }
        if not _has_own_pipeline(folder):
            return settings | json_settings
        class_settings = _DEFAULTS | {
            name: settings[name] for name in _DEFAULTS if name in settings
        }
        if class_settings != json_settings:
            logging.info(
                "%s: %s, which follow the tokenizer's class and its settings, as in "
                "transformers; tokenizer.json's normalizer has %s",
                folder.path, class_settings, json_settings,
            )  # fmt: skip
    return _DEFAULTS | settings if model and _has_own_pipeline(folder) else settings


def _has_own_pipeline(folder: TokenizerFolder) -> bool:
    """Whether transformers normalises texts by tokenizer_config.json instead of tokenizer.json."""
    return folder.is_of(_OWN_PIPELINE, _OWN_PIPELINE_TYPES)


def _has_upper_case(vocabulary: list[str]) -> bool:
    """Whether a token of letters only, apart from "##", has upper case.

    "[CLS]" and "<S>" do not count, because uncased models have them too.
    """
    words = (piece.removeprefix("##") for piece in vocabulary)
    return any(word.isalpha() and word != word.lower() for word in words)
