"""Loading a tokenizer from a folder: kbert's own, Hugging Face's, KerasHub's or Google's."""

import os
from typing import Any

from kbert.core import late
from kbert.hub import locate
from kbert.io.paths import Path
from kbert.tokenizers.bpe.files import ends_words, read_model
from kbert.tokenizers.folder import TokenizerFolder

# Where sentence-transformers may save a static embedding table and its tokenizer.
STATIC_FOLDER = "0_StaticEmbedding"
_LOWER_CASE = "do_lower_case/.ATTRIBUTES/VARIABLE_VALUE"


def load_tokenizer(folder: str | os.PathLike, **options: Any) -> Any:
    """Loads the tokenizer of a model folder or of prepared data.

    The files in the folder determine the kind:

    - vocab.txt: WordPiece.
    - vocab.json and merges.txt: byte-level BPE, or GPT's BPE if tokens end in "</w>".
    - source.spm and target.spm: Marian's, two SentencePiece models with the ids of vocab.json.
    - one *.model: SentencePiece unigram.
    - words.txt, or a single vocab*.txt next to bilm-tf's options.json: whole words.
    - tokenizer_config.json that names `CharacterTokenizer`: characters.
    - otherwise Hugging Face's tokenizer.json or KerasHub's assets/tokenizer: WordPiece, BPE or
      unigram.

    Settings come from tokenizer_config.json and tokenizer.json, special tokens also from
    special_tokens_map.json and added_tokens.json. A WordPiece folder without settings (Google's
    TensorFlow 1 releases) counts as uncased if no token contains an upper-case letter. In a
    SavedModel of TF Hub the files are in assets/, and its variable do_lower_case, if any, sets the
    case. A WordPiece from tokenizer.json without a post-processor gets the special tokens that its
    vocabulary lacks (model2vec).

    Args:
        folder: a folder, a SentencePiece `.model` file, or the name of a model:
            "bert-base-uncased", "hf:owner/name@revision" (see `kbert.hub.locate`). The weights are
            not downloaded.
        options: arguments of the tokenizer that override the folder.

    Returns:
        The tokenizer: a `WordPieceTokenizer`, `BytePairTokenizer`, `GptTokenizer`,
        `UnigramTokenizer`, `MarianTokenizer`, `WordTokenizer` or `CharacterTokenizer`.

    Raises:
        FileNotFoundError: no such folder or model, or no vocabulary in it.
        ConnectionError: the hub cannot be reached; the message lists the files to provide and
            where.
        ValueError: another kind of tokenizer, or an invalid vocabulary.

    Example:
        >>> import tempfile
        >>> from kbert.tokenizers import SPECIAL_TOKENS, WordPieceTokenizer
        >>> folder = tempfile.mkdtemp()
        >>> WordPieceTokenizer([*SPECIAL_TOKENS, "Pen"], lowercase=False).save(folder)
        >>> load_tokenizer(folder).lowercase
        False
    """
    if Path(folder).suffix == ".model" and Path(folder).is_file():
        files = TokenizerFolder.read(Path(folder).parent)
        return late.load("tokenizer", "unigram")(files, Path(folder), **options)
    model_folder = locate(folder, weights=False)
    if (model_folder / STATIC_FOLDER / "tokenizer.json").is_file():
        model_folder = model_folder / STATIC_FOLDER
    if (assets := _vocabulary_folder(model_folder)) is not None:
        model_folder, options = assets, _saved_settings(model_folder) | options
    files = TokenizerFolder.read(model_folder)
    return late.load("tokenizer", _kind(files))(files, **options)


def _kind(files: TokenizerFolder) -> str:
    """Returns the kind of a folder's tokenizer, a name of a loader: "wordpiece", "bpe", ….

    Raises FileNotFoundError if there is no vocabulary, and ValueError for an unsupported kind.
    """
    model = (files.full.get("model") or {}).get("type")
    if files.config.get("tokenizer_class") == "CharacterTokenizer":
        return "characters"
    if files.words_file:
        return "words"
    if files.has("vocab.txt", "bpe.codes"):
        raise ValueError(
            "fastBPE (vocab.txt with bpe.codes: PhoBERT, BERTweet) is not supported; PhoBERT "
            "also requires another program that joins its words. kbert.Encoder.from_preset loads "
            f"the model without its tokenizer. Received: {files.path}"
        )
    if files.has("vocab.txt"):
        return "wordpiece"
    if files.has("source.spm"):
        return "marian"
    if files.has("vocab.json", "merges.txt") or (model == "BPE" and not files.model_file):
        return "gpt" if ends_words(read_model(files)[0]) else "bpe"
    if files.model_file or model == "Unigram":
        return "unigram"
    if "class_name" in files.full:
        return "keras_hub"
    if model == "WordPiece":
        return "wordpiece"
    if model is not None:
        raise ValueError(
            "A tokenizer.json without other files must be a WordPiece, a byte-level BPE or a "
            f"unigram tokenizer. Received: {files.path / 'tokenizer.json'} with model type "
            f"{model!r}"
        )
    names = sorted(path.name for path in files.path.iterdir())
    raise FileNotFoundError(
        "A tokenizer's folder must contain vocab.txt, vocab.json and merges.txt, a *.model, "
        f"source.spm, words.txt or tokenizer.json. Received: {files.path} with {names}"
    )


def _vocabulary_folder(folder: Path) -> Path | None:
    """Returns the folder of a SavedModel's vocabulary, assets/.

    Returns None if assets/ is empty or missing, or `folder` is no SavedModel.
    """
    assets = folder / "assets"
    if not (folder / "saved_model.pb").is_file() or not assets.is_dir():
        return None
    return assets if any(assets.iterdir()) else None


def _saved_settings(folder: Path) -> dict[str, Any]:
    """Reads arguments of the tokenizer from the variables of a SavedModel of TF Hub.

    SavedModels in TensorFlow 2 format have a variable `do_lower_case`
    (official/nlp/tools/export_tfhub_lib.py of tensorflow/models).

    Args:
        folder: the folder of the SavedModel.

    Returns:
        `lowercase`, or an empty dict: TensorFlow 1 modules have the setting in their graph.

    Raises:
        ValueError: the variables are damaged.
    """
    import tensorflow as tf

    prefix = folder / "variables" / "variables"
    if not prefix.with_suffix(".index").is_file():
        return {}
    try:
        reader = tf.train.load_checkpoint(str(prefix))
        is_flag = reader.get_variable_to_dtype_map().get(_LOWER_CASE) == tf.bool
        if not is_flag or reader.get_variable_to_shape_map()[_LOWER_CASE]:
            return {}
        return {"lowercase": bool(reader.get_tensor(_LOWER_CASE))}
    except (tf.errors.OpError, IndexError, RuntimeError, ValueError) as error:
        reason = getattr(error, "message", None) or str(error)
        raise ValueError(
            f"The variables of the SavedModel are damaged ({reason}). Received: {prefix}"
        ) from error
