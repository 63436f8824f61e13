"""Loading a byte-level BPE tokenizer from files of Hugging Face and of fairseq's users."""

from typing import Any

from kbert.tokenizers.bpe.files import as_merges, read_model
from kbert.tokenizers.bpe.tokenizer import (
    GPT2_TOKENS,
    ROBERTA_TOKENS,
    BytePairTokenizer,
    known_tokens,
)
from kbert.tokenizers.bpe.tokenizer_json import words_of
from kbert.tokenizers.folder import BYTE_PAIR_CLASSES, BYTE_PAIR_TYPES, TokenizerFolder

# Classes with GPT-2's words; "" = no class. Others normalise texts, or split numbers.
_GPT2_WORDS = BYTE_PAIR_CLASSES.union(
    "CodeGen Luke Mvp PreTrained TokenizersBackend Whisper".split(), [""]
)
# Those of them that do not put RoBERTa's or DeBERTa's tokens around texts, which these models need.
_WITHOUT_TEMPLATE = frozenset("CodeGen GPT2 Whisper".split())
_TEMPLATE_TYPES = BYTE_PAIR_TYPES - {"gpt2"}
_DEBERTA_TOKENS = {
    "pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]",
    "bos": "[CLS]", "eos": "[SEP]",
}  # fmt: skip
# Fields of the model in a tokenizer.json -> the only value that is supported.
_MODEL = {
    "continuing_subword_prefix": "",
    "end_of_word_suffix": "",
    "byte_fallback": False,
    "dropout": None,
}
# Flags of an added token that are not supported; "lstrip" is supported for the mask.
_FLAGS = ("rstrip", "single_word")


def load_byte_pair(folder: TokenizerFolder, **options: Any) -> BytePairTokenizer:
    """Loads the tokenizer of a folder with vocab.json and merges.txt, or only tokenizer.json.

    Args:
        folder: the files of the folder.
        options: arguments of `BytePairTokenizer` that override the files. With
            `special_tokens_in_text`, True or False, special tokens without a role stay special;
            otherwise they become added tokens, unless kbert saved the folder.

    Raises:
        ValueError: the files need a feature that `BytePairTokenizer` does not support.
    """
    _check_class(folder)
    vocabulary, merges = read_model(folder)
    has_own_pipeline = folder.is_of(BYTE_PAIR_CLASSES, BYTE_PAIR_TYPES)
    if folder.full.get("model"):
        _check_pipeline(folder, has_own_pipeline)
        _check_pieces(folder, vocabulary, merges)
    added = folder.added_tokens()
    for token in added:
        vocabulary.setdefault(token["content"], token["id"])
    is_own_folder = "special_tokens_in_text" in folder.config  # kbert saves all settings
    roles = _ends(folder.special_tokens()) or known_tokens(vocabulary)
    if has_own_pipeline and not is_own_folder:
        roles = _class_tokens(folder, vocabulary) | roles
    plain_added = _found_in_every_text(folder, roles, added)
    plain_added_set = set(plain_added)
    # Tokens such as entity markers are listed in order to be found. Models in folders of older
    # versions of kbert were trained on the parts of such tokens.
    if not is_own_folder and options.get("special_tokens_in_text") is None:
        plain_added += sorted(folder.specials_without_role() - {*roles.values(), *plain_added})
    settings = {
        "special_tokens": roles,
        "additional_special_tokens": _without_role(folder, roles, added, plain_added),
        "add_prefix_space": _add_prefix_space(folder, has_own_pipeline),
        "special_tokens_in_text": folder.config.get("special_tokens_in_text", False),
        "mask_takes_space": _mask_takes_space(folder, roles.get("mask"), added),
        "normalization": "nfc" if folder.normalizers() and not has_own_pipeline else None,
        "added_tokens": plain_added,
    }
    if folder.full.get("model"):
        if not has_own_pipeline:
            settings["words"] = words_of(folder.full.get("pre_tokenizer") or {})
        settings["ignore_merges"] = bool(folder.full["model"].get("ignore_merges"))
    if settings["normalization"] or plain_added:  # otherwise all tokens are found in one pass
        settings["normalized_tokens"] = [
            entry["content"]
            for entry in added
            if entry.get("normalized", entry["content"] in plain_added_set)
        ]
    try:
        tokenizer = BytePairTokenizer(vocabulary, merges, **(settings | options))
    except ValueError as error:
        raise ValueError(f"{error} in {folder.path}") from error
    lacks_template = (
        folder.stem in _WITHOUT_TEMPLATE
        and folder.model_config.get("model_type") in _TEMPLATE_TYPES
        and not is_own_folder
    )
    folder.check_rows(
        tokenizer,
        own_template=has_own_pipeline and not lacks_template,
        lacks_template=lacks_template,
    )
    return tokenizer


def _check_class(folder: TokenizerFolder) -> None:
    """Raises ValueError for a class that is not known to have GPT-2's words.

    Does nothing if there is a tokenizer.json, which defines the words and is checked.
    """
    if not folder.full.get("model") and folder.stem not in _GPT2_WORDS:
        raise ValueError(
            "A byte-level BPE without a tokenizer.json must be of a class with GPT-2's words: "
            f"{', '.join(sorted(_GPT2_WORDS - {''}))}. For another class save the folder with "
            f"transformers 5, which writes tokenizer.json. Received: "
            f"tokenizer_class={folder.class_name!r} in {folder.path}"
        )


def _check_pipeline(folder: TokenizerFolder, own: bool) -> None:
    """Raises ValueError if tokenizer.json needs more than NFC, known word splitting and merges.

    `own`: whether transformers ignores its normalizer and pre-tokenizer for this class.
    """
    model = folder.full["model"]
    unsupported = {
        name: model.get(name) for name, plain in _MODEL.items() if model.get(name) != plain
    }
    unsupported = {name: value for name, value in unsupported.items() if value}
    words = folder.full.get("pre_tokenizer") or {}
    other_normalizers = [step["type"] for step in folder.normalizers() if step["type"] != "NFC"]
    if not own and words_of(words) is None:
        unsupported["pre_tokenizer"] = words.get("type")
    if not own and other_normalizers:
        unsupported["normalizer"] = other_normalizers[0]
    folder.refuse(
        "A byte-level BPE must have GPT-2's words (pre_tokenizer ByteLevel) or Llama 3's, plain "
        "merges and no normalizer but NFC",
        unsupported,
    )


def _check_pieces(folder: TokenizerFolder, vocabulary: dict[str, int], merges: Any) -> None:
    """Raises ValueError if tokenizer.json has other ids or merges than vocab.json and merges.txt.

    Without these two files it does nothing. `vocabulary` and `merges` come from `read_model`.
    """
    if not folder.has("vocab.json", "merges.txt"):
        return
    model = folder.full["model"]
    differing = [x for x, n in model.get("vocab", {}).items() if vocabulary.get(x, n) != n]
    if differing:
        raise ValueError(
            "vocab.json and tokenizer.json of a folder must have the same tokens. Received: "
            f"{differing[0]!r} with the id {model['vocab'][differing[0]]} in tokenizer.json, and "
            f"{vocabulary[differing[0]]} in vocab.json of {folder.path}"
        )
    json_merges = [
        tuple(x.split(" ") if isinstance(x, str) else x) for x in model.get("merges", [])
    ]
    if json_merges != as_merges(merges):
        raise ValueError(
            "merges.txt and tokenizer.json of a folder must have the same merges. Received: "
            f"others in {folder.path}"
        )


def _ends(roles: dict[str, str]) -> dict[str, str]:
    """Returns role -> special token, in which "bos" is also "cls" and "eos" also "sep".

    Tokens that the files name for "cls" and "sep" stay; GPT-2's files name none.
    """
    ends = {"cls": roles.get("bos"), "sep": roles.get("eos")}
    return {role: token for role, token in ends.items() if token} | roles


def _class_tokens(folder: TokenizerFolder, vocabulary: dict[str, int]) -> dict[str, str]:
    """Returns role -> default token of the folder's class in transformers, if in `vocabulary`."""
    kind = (folder.stem or folder.model_config["model_type"]).lower()
    tokens = {"gpt2": GPT2_TOKENS, "deberta": _DEBERTA_TOKENS}.get(kind, ROBERTA_TOKENS)
    return {role: token for role, token in tokens.items() if token in vocabulary}


def _found_in_every_text(
    folder: TokenizerFolder, roles: dict[str, str], added: list[dict[str, Any]]
) -> list[str]:
    """Returns the added tokens that are not special, which are recognised in every text.

    `roles`: role -> special token; `added`: the entries of `TokenizerFolder.added_tokens`.
    """
    specials = {*roles.values(), *folder.specials_without_role()}
    return [
        token["content"]
        for token in added
        if token["content"] not in roles.values()
        and not token.get("special", token["content"] in specials)
    ]


def _without_role(
    folder: TokenizerFolder, roles: dict[str, str], added: list[dict[str, Any]], found: list[str]
) -> list[str]:
    """Returns the special tokens without a role: those in `added` by id, then the others sorted.

    `roles`: role -> special token; `added`: the entries of `TokenizerFolder.added_tokens`; `found`:
    the added tokens that are not special.
    """
    in_order = [token["content"] for token in sorted(added, key=lambda token: token["id"])]
    excluded = {*roles.values(), *found}
    names = [name for name in in_order if name not in excluded]
    return [*names, *sorted(folder.specials_without_role() - excluded.union(names))]


def _add_prefix_space(folder: TokenizerFolder, own: bool) -> bool:
    words = {} if own else folder.full.get("pre_tokenizer") or {}
    return words.get("add_prefix_space", folder.config.get("add_prefix_space") or False)


def _mask_takes_space(
    folder: TokenizerFolder, mask: str | None, added: list[dict[str, Any]]
) -> bool:
    """Whether the token `mask` takes the white space before it ("lstrip"); True by default.

    Raises ValueError if another token has "lstrip", or any has "rstrip" or "single_word". `added`
    are the entries of `TokenizerFolder.added_tokens`.
    """
    entries = [folder.special.get("mask_token"), folder.config.get("mask_token"), *added]
    takes_space = True
    for entry in entries:
        if not isinstance(entry, dict):
            continue
        is_mask = entry["content"] == mask
        wrong = [flag for flag in _FLAGS if entry.get(flag)]
        if entry.get("lstrip") and not is_mask:
            wrong.append("lstrip")
        if wrong:
            raise ValueError(
                "Only the mask may strip white space, and only before it (lstrip). "
                f"Received: {entry['content']!r} with {', '.join(wrong)} in {folder.path}"
            )
        if is_mask and "lstrip" in entry:
            takes_space = entry["lstrip"]
    return takes_space
