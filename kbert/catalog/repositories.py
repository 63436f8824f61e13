"""Names of published models and their repositories on the Hugging Face hub."""

import difflib
import itertools
import re
from collections.abc import Iterable

# Models of `kbert.family`, by owner. On the hub these names first had no owner; names with and
# without the owner both work.
_UNPREFIXED = {
    "google-bert": (
        "bert-base-uncased",
        "bert-large-uncased",
        "bert-large-uncased-whole-word-masking",
        "bert-base-cased",
        "bert-large-cased",
        "bert-large-cased-whole-word-masking",
        "bert-base-multilingual-uncased",
        "bert-base-multilingual-cased",
        "bert-base-chinese",
    ),
    "albert": tuple(
        f"albert-{size}-v{version}"
        for version, size in itertools.product((1, 2), ("base", "large", "xlarge", "xxlarge"))
    ),
    "FacebookAI": ("roberta-base", "roberta-large", "xlm-roberta-base", "xlm-roberta-large"),
    "distilbert": (
        "distilbert-base-uncased",
        "distilbert-base-cased",
        "distilbert-base-multilingual-cased",
        "distilroberta-base",
    ),
    "xlnet": ("xlnet-base-cased", "xlnet-large-cased"),
    "transfo-xl": ("transfo-xl-wt103",),
    "google-t5": tuple(f"t5-{size}" for size in ("small", "base", "large", "3b", "11b")),
    "openai-community": ("openai-gpt", "gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl"),
}
_PREFIXED = (
    "hfl/chinese-bert-wwm",
    "hfl/chinese-bert-wwm-ext",
    "hfl/chinese-roberta-wwm-ext",
    "hfl/chinese-roberta-wwm-ext-large",
    *(
        f"google/bert_uncased_L-{layers}_H-{hidden}_A-{hidden // 64}"
        for layers, hidden in itertools.product((2, 4, 6, 8, 10, 12), (128, 256, 512, 768))
    ),
    *(
        f"google/electra-{size}-{part}"
        for size, part in itertools.product(
            ("small", "base", "large"), ("discriminator", "generator")
        )
    ),
    "SpanBERT/spanbert-base-cased",
    "SpanBERT/spanbert-large-cased",
    "huawei-noah/TinyBERT_General_4L_312D",
    "huawei-noah/TinyBERT_General_6L_768D",
    "nreimers/MiniLM-L6-H384-uncased",
    "microsoft/MiniLM-L12-H384-uncased",
    "google/mobilebert-uncased",
    *(f"microsoft/deberta-v3-{size}" for size in ("xsmall", "small", "base", "large")),
    "microsoft/mpnet-base",
    "squeezebert/squeezebert-uncased",
    *(f"YituTech/conv-bert-{size}" for size in ("small", "medium-small", "base")),
    "allenai/longformer-base-4096",
    "allenai/longformer-large-4096",
    "google/reformer-enwik8",
    "google/reformer-crime-and-punishment",
    "answerdotai/ModernBERT-base",
    "answerdotai/ModernBERT-large",
    *(
        f"jhu-clsp/ettin-{part}-{size}"
        for part, size in itertools.product(
            ("encoder", "decoder"), ("17m", "32m", "68m", "150m", "400m", "1b")
        )
    ),
    "jhu-clsp/mmBERT-small",
    "jhu-clsp/mmBERT-base",
    "chandar-lab/NeoBERT",
    "mosaicml/mosaic-bert-base",
    *(f"mosaicml/mosaic-bert-base-seqlen-{length}" for length in (256, 512, 1024, 2048)),
    *(f"facebook/bart-{size}" for size in ("base", "large", "large-cnn")),
    "sshleifer/distilbart-cnn-12-6",
    "facebook/mbart-large-cc25",
    "Helsinki-NLP/opus-mt-en-de",
    "google/pegasus-large",
    *(
        f"google/{version}-{size}"
        for version, size in itertools.product(
            ("t5-v1_1", "flan-t5"), ("small", "base", "large", "xl", "xxl")
        )
    ),
    *(f"google/mt5-{size}" for size in ("small", "base", "large", "xl", "xxl")),
    "nghuyong/ernie-1.0-base-zh",
    *(f"nghuyong/ernie-2.0-{size}-en" for size in ("base", "large")),
    *(
        f"nghuyong/ernie-3.0-{size}-zh"
        for size in ("xbase", "base", "medium", "mini", "micro", "nano")
    ),
    "junnyu/roformer_chinese_base",
    "junnyu/roformer_chinese_small",
    "nomic-ai/nomic-bert-2048",
    *(f"EuroBERT/EuroBERT-{size}" for size in ("210m", "610m", "2.1B")),
    "sentence-transformers/all-MiniLM-L6-v2",
    "sentence-transformers/all-MiniLM-L12-v2",
    "sentence-transformers/all-mpnet-base-v2",
)
SIZES = {
    "bert-tiny": "google/bert_uncased_L-2_H-128_A-2",
    "bert-mini": "google/bert_uncased_L-4_H-256_A-4",
    "bert-small": "google/bert_uncased_L-4_H-512_A-8",
    "bert-medium": "google/bert_uncased_L-8_H-512_A-8",
    "bert-base": "google-bert/bert-base-uncased",
    "bert-large": "google-bert/bert-large-uncased",
}

REPOSITORIES: dict[str, str] = {
    **SIZES,
    **{name: f"{owner}/{name}" for owner, names in _UNPREFIXED.items() for name in names},
    **{
        f"{owner}/{name}": f"{owner}/{name}"
        for owner, names in _UNPREFIXED.items()
        for name in names
    },
    **{name: name for name in _PREFIXED},
    # The common names, without owner; no two of them are equal.
    **{name.partition("/")[2]: name for name in _PREFIXED},
}

_PREFIX = "hf:"
_PART = r"[A-Za-z0-9](?:[\w.-]{0,94}[\w-])?"
_REPOSITORY = re.compile(rf"{_PART}(?:/{_PART})?", re.ASCII)
# A branch, a tag or a commit; "refs/pr/3" is a branch with slashes in it.
_REVISION = re.compile(r"\w[\w./+-]*", re.ASCII)


def parse_name(name: str) -> tuple[str, str | None] | None:
    """Splits a model's name into (repository, revision); returns None for any other string.

    Args:
        name: "hf:owner/name" or a well-known name; either may end in "@revision".

    Raises:
        ValueError: the name begins with "hf:" or is well known, but is malformed.

    Example:
        >>> parse_name("bert-base-uncased")
        ('google-bert/bert-base-uncased', None)
        >>> parse_name("hf:me/mine@refs/pr/1")
        ('me/mine', 'refs/pr/1')
        >>> parse_name("./folder")
    """
    base, at, revision = name.removeprefix(_PREFIX).partition("@")
    if not name.startswith(_PREFIX):
        if base not in REPOSITORIES:
            return None
        base = REPOSITORIES[base]
    if not _REPOSITORY.fullmatch(base) or ".." in base or "--" in base:
        raise ValueError(
            "A model of the hub must be written hf:owner/name or hf:owner/name@revision, with "
            f"letters, digits, '_', '-' and '.' in owner and name. Received: {name!r}"
        )
    if at:
        check_revision(revision, name)
    return base, revision if at else None


def check_revision(revision: str, name: str) -> None:
    """Raises ValueError unless `revision` can be the name of a branch, a tag or a commit.

    `name` is the name of the model, for the message.
    """
    if not _REVISION.fullmatch(revision) or ".." in revision:
        raise ValueError(
            "A revision must be a branch, a tag or a commit of the repository. Received: "
            f"{revision!r} with {name!r}"
        )


def close_names(name: str, among: Iterable[str] = REPOSITORIES) -> list[str]:
    """Returns at most five of the names `among` that contain `name` or are similar to it.

    Case does not matter for names that contain it. They come first, the shortest before others.

    Example:
        >>> close_names("minilm-l12")[0]
        'all-MiniLM-L12-v2'
    """
    asked, among = name.lower(), list(among)
    parts = sorted((known for known in among if asked and asked in known.lower()), key=len)
    like = difflib.get_close_matches(name, among, n=5, cutoff=0.5)
    return list(dict.fromkeys([*parts, *like]))[:5]
