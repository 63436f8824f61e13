"""The files of a folder that describe its tokenizer."""

import functools
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from absl import logging

from kbert.io.json_file import read_json
from kbert.io.paths import Path

# The roles that Hugging Face's files name as "…_token".
_ROLES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
# Model types for which transformers runs tokenizer.json, whatever class a file names.
_RUN_AS_WRITTEN = ("modernbert", "modernbert-decoder")
# For these classes of byte-level BPE transformers 5 builds the pipeline from tokenizer_config.json
# and defaults, and uses only vocabulary and merges of tokenizer.json; for others it uses all of it.
BYTE_PAIR_CLASSES = frozenset("Bart Deberta GPT2 LED Longformer Roberta".split())
BYTE_PAIR_TYPES = frozenset("bart data2vec-text deberta gpt2 led longformer roberta".split())
# Names of special tokens without a role: in transformers up to version 4, and since 5.
_WITHOUT_ROLE = ("additional_special_tokens", "extra_special_tokens")

WORDS_FILE = "words.txt"  # a vocabulary of whole words

# The rule for a value, in words, and a function that checks it.
Form = tuple[str, Callable[[Any], bool]]


def check_forms(content: Mapping[str, Any], forms: Mapping[str, Form], path: Path) -> None:
    """Raises ValueError if a value does not have the form of its key.

    Args:
        content: key -> value.
        forms: key -> the rule in words, and a function that checks a value. A key may be absent
            from `content`.
        path: the file, for the error message.

    Example:
        >>> check_forms({"do_lower_case": "maybe"}, {"do_lower_case": FLAG}, Path("x.json"))
        Traceback (most recent call last):
        ...
        ValueError: `do_lower_case` must be true, false or null. Received: 'maybe' in x.json
    """
    for key, (rule, is_valid) in forms.items():
        if key in content and not is_valid(content[key]):
            received = repr(content[key])
            received = received if len(received) <= 80 else f"{received[:80]}…"
            raise ValueError(f"`{key}` must be {rule}. Received: {received} in {path}")


def _is_token(entry: Any) -> bool:
    return isinstance(entry["content"] if _is_entry(entry) else entry, str)


def _is_entry(entry: Any) -> bool:
    return isinstance(entry, dict) and isinstance(entry.get("content"), str)


def _is_step(entry: Any) -> bool:
    return isinstance(entry, dict) and isinstance(entry.get("type"), str)


def _is_normalizer(entry: Any) -> bool:
    steps = entry.get("normalizers", [entry]) if isinstance(entry, dict) else None
    return isinstance(steps, list) and all(map(_is_step, steps))


def _is_post_processor(entry: Any) -> bool:
    if not _is_step(entry):
        return False
    return all(map(_is_template, _steps(entry, "processors")))


def _is_template(step: dict[str, Any]) -> bool:
    """Whether a step of a post-processor has the fields that its "type" requires."""
    if step.get("type") in ("BertProcessing", "RobertaProcessing"):
        ends = (step.get("cls"), step.get("sep"))
        return all(isinstance(end, list) and [*map(type, end)] == [str, int] for end in ends)
    if step.get("type") != "TemplateProcessing":
        return isinstance(step.get("type"), str)
    parts = [part for name in ("single", "pair") for part in _as_list(step.get(name))]
    tokens = step.get("special_tokens") or {}
    return (
        isinstance(tokens, dict)
        and all(isinstance(x, dict) and isinstance(x.get("ids"), list) for x in tokens.values())
        and all(isinstance(part, dict) and len(part) == 1 for part in parts)
        and all(isinstance(x, dict) and isinstance(x.get("id"), str)
                and type(x.get("type_id", 0)) is int
                for part in parts for x in part.values())
    )  # fmt: skip


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _is_model(entry: Any) -> bool:
    """Whether the "vocab" of a model is {token: id} or [[token, score], …]; it may be missing."""
    if not isinstance(entry, dict):
        return False
    vocabulary = entry.get("vocab", {})
    if isinstance(vocabulary, dict):
        return all(type(number) is int for number in vocabulary.values())
    return isinstance(vocabulary, list) and all(
        isinstance(pair, list)
        and len(pair) == 2
        and isinstance(pair[0], str)
        and type(pair[1]) in (int, float)
        for pair in vocabulary
    )


FLAG: Form = ("true, false or null", lambda x: x is None or isinstance(x, bool))
_TOKEN: Form = ("a token, or null", lambda x: not x or _is_token(x))
_TOKENS: Form = (
    "a list of tokens",
    lambda x: not x or (isinstance(x, list) and all(map(_is_token, x))),
)
_NAMED_TOKENS: Form = (
    "a list of tokens, or an object that maps names to tokens",
    lambda x: _TOKENS[1]([*x.values()] if isinstance(x, dict) else x),
)
_IDS: Form = (
    "an object that maps tokens to ids",
    lambda x: isinstance(x, dict) and all(type(number) is int for number in x.values()),
)
_NAMED = {
    **{f"{role}_token": _TOKEN for role in _ROLES},
    **dict.fromkeys(_WITHOUT_ROLE, _NAMED_TOKENS),
}
_FORMS: Mapping[str, Mapping[str, Form]] = {
    "tokenizer_config.json": {
        **_NAMED,
        **dict.fromkeys(("do_lower_case", "strip_accents", "tokenize_chinese_chars"), FLAG),
        **dict.fromkeys(("add_prefix_space", "keep_accents", "special_tokens_in_text"), FLAG),
        "added_tokens_decoder": (
            "an object that maps ids to tokens",
            lambda x: (
                not x
                or (
                    isinstance(x, dict)
                    and all(map(str.isdecimal, x))
                    and all(map(_is_entry, x.values()))
                )
            ),
        ),
        "added_pieces": (
            "a list of tokens",
            lambda x: isinstance(x, list) and all(isinstance(token, str) for token in x),
        ),
        "tokenizer_class": ("a name, or null", lambda x: x is None or isinstance(x, str)),
    },
    "special_tokens_map.json": _NAMED,
    "tokenizer.json": {
        "model": ("an object with tokens and their ids or scores", _is_model),
        "config": ("an object", lambda x: isinstance(x, dict)),
        "normalizer": ("a normalizer, or null", lambda x: not x or _is_normalizer(x)),
        "pre_tokenizer": ("a pre-tokenizer, or null", lambda x: not x or _is_step(x)),
        "post_processor": ("a post-processor, or null", lambda x: not x or _is_post_processor(x)),
        "truncation": ("an object, or null", lambda x: x is None or isinstance(x, dict)),
        "added_tokens": (
            "a list of tokens with ids",
            lambda x: (
                not x
                or (
                    isinstance(x, list)
                    and all(_is_entry(e) and type(e.get("id")) is int for e in x)
                )
            ),
        ),
    },
}


@dataclass(frozen=True)
class TokenizerFolder:
    """A folder and the contents of its JSON files; empty for missing files.

    Attributes:
        path: the folder.
        config: tokenizer_config.json: settings and names of special tokens.
        special: special_tokens_map.json: names of special tokens in older folders.
        full: tokenizer.json: the complete pipeline of Hugging Face's `tokenizers`.
    """

    path: Path
    config: dict[str, Any]
    special: dict[str, Any]
    full: dict[str, Any]

    @classmethod
    def read(cls, path: Path) -> Self:
        """Reads the JSON files that exist in the folder `path`.

        Raises:
            ValueError: a file is damaged or has an unexpected form; the message names it.
        """

        def content(name: str) -> dict[str, Any]:
            if not (path / name).is_file():
                return {}
            settings = read_json(path / name)
            check_forms(settings, _FORMS[name], path / name)
            return settings

        config, special, full = map(content, _FORMS)
        if model := full.get("model"):
            full["model"] = {"type": _type_of(model), **model}
        return cls(path, config, special, full)

    def has(self, *names: str) -> bool:
        """Whether all these files exist."""
        return all((self.path / name).is_file() for name in names)

    @property
    def words_file(self) -> Path | None:
        """The vocabulary of words: kbert's, or the one next to bilm-tf's options.json; or None.

        Raises:
            ValueError: several vocabularies next to options.json.
        """
        if self.has(WORDS_FILE):
            return self.path / WORDS_FILE
        paths = sorted(self.path.glob("vocab*.txt")) if self.has("options.json") else []
        if len(paths) > 1:
            raise ValueError(
                "There must be one vocabulary next to bilm-tf's options.json. Received: "
                f"{', '.join(path.name for path in paths)} in {self.path}"
            )
        return paths[0] if paths else None

    @property
    def model_file(self) -> Path | None:
        """The SentencePiece model: the only *.model file, or None.

        Raises:
            ValueError: there are several models.
        """
        paths = sorted(self.path.glob("*.model"))
        if len(paths) > 1:
            raise ValueError(
                "A tokenizer's folder must contain only one SentencePiece model. Received: "
                f"{', '.join(path.name for path in paths)} in {self.path}"
            )
        return paths[0] if paths else None

    def special_tokens(self) -> dict[str, str]:
        """Returns role -> special token, for the roles that the files name."""
        tokens = {}
        for role in _ROLES:
            entry = self.config.get(f"{role}_token") or self.special.get(f"{role}_token")
            if entry:
                tokens[role] = text_of(entry)
        return tokens

    def added_tokens(self) -> list[dict[str, Any]]:
        """Returns the added tokens as entries with `id`, `content` and, in most files, flags.

        They come from the first file that has any: tokenizer.json, tokenizer_config.json or
        added_tokens.json.
        """
        if self.full.get("added_tokens"):
            return self.full["added_tokens"]
        if self.config.get("added_tokens_decoder"):
            entries = self.config["added_tokens_decoder"]
            return [{"id": int(number), **entry} for number, entry in entries.items()]
        if self.has("added_tokens.json"):
            ids = read_json(self.path / "added_tokens.json")
            check_forms({"ids": ids}, {"ids": _IDS}, self.path / "added_tokens.json")
            return [{"id": number, "content": token} for token, number in ids.items()]
        return []

    def specials_without_role(self) -> set[str]:
        """Returns the special tokens without a role.

        tokenizer_config.json or special_tokens_map.json lists them.
        """
        tokens = set()
        for key in _WITHOUT_ROLE:
            entries = self.config.get(key) or self.special.get(key) or []
            tokens |= {
                text_of(x) for x in (entries.values() if isinstance(entries, dict) else entries)
            }
        return tokens

    @functools.cached_property
    def model_config(self) -> dict[str, Any]:
        """The model's config.json in the same folder; empty if there is none."""
        path = self.path / "config.json"
        return read_json(path) if path.is_file() else {}

    @functools.cached_property
    def class_name(self) -> str:
        """Name of the tokenizer's class in transformers, without "Fast"; "" if no file names it."""
        if self.model_config.get("model_type") in _RUN_AS_WRITTEN:
            return "TokenizersBackend"
        name = self.config.get("tokenizer_class") or self.model_config.get("tokenizer_class")
        return name.removesuffix("Fast") if isinstance(name, str) else ""

    @property
    def stem(self) -> str:
        """`class_name` without "Tokenizer": "Bert", "BertLegacy", "TokenizersBackend"."""
        return re.sub("Tokenizer(?!s)", "", self.class_name, count=1)

    def is_of(self, classes: Collection[str], model_types: Collection[str]) -> bool:
        """Whether the tokenizer's class is in `classes`; without a class, the model's type decides.

        Args:
            classes: names of classes without "Tokenizer" and "Fast".
            model_types: values of `model_type` in config.json; used if no file names a class.
        """
        if self.class_name:
            return self.stem in classes
        return self.model_config.get("model_type") in model_types

    def normalizers(self) -> list[dict[str, Any]]:
        """Returns the normalizer of tokenizer.json as a list of steps; [] if it has none."""
        normalizer = self.full.get("normalizer")
        return _steps(normalizer, "normalizers") if normalizer else []

    def pre_tokenizers(self) -> list[dict[str, Any]]:
        """Returns the pre-tokenizer of tokenizer.json as a list of steps; [] if it has none."""
        step = self.full.get("pre_tokenizer")
        return _steps(step, "pretokenizers") if step else []

    def refuse_added(self, vocabulary: Sequence[str]) -> None:
        """Refuses added tokens, for kinds of tokenizers that do not support them.

        Special tokens of `vocabulary`, which lists the tokens in the order of their ids, may stay.

        Raises:
            ValueError: an added token is not special, or has another id in the vocabulary or none.
        """
        specials = {*self.special_tokens().values(), *self.specials_without_role()}
        listed = {entry["content"] for entry in self.added_tokens()}
        for token in sorted(self.specials_without_role() - listed - {*vocabulary}):
            raise ValueError(
                "Special tokens without a role must be tokens of the vocabulary. Received: "
                f"{' or '.join(_WITHOUT_ROLE)} with {token!r} in {self.path}, which the "
                "vocabulary lacks"
            )
        for entry in self.added_tokens():
            token, number = entry["content"], entry["id"]
            if not entry.get("special", token in specials):
                reason = "it would be found in every text"
            elif list(vocabulary[number : number + 1]) != [token]:
                reason = f"the vocabulary does not have it as id {number}"
            else:
                continue
            raise ValueError(
                f"Only WordPiece and byte-level BPE support added tokens. Received: {token!r} in "
                f"{self.path}: {reason}"
            )

    def check_rows(
        self, tokenizer: Any, *, own_template: bool = False, lacks_template: bool = False
    ) -> None:
        """Checks that the files describe the input sequences that kbert builds for an encoder.

        These are CLS A SEP and CLS A SEP B SEP, or XLNet's A SEP B SEP CLS, or mBART's with a
        language, truncated at the end.
        For pairs a template may also have "A B": the default if it does not define pairs, which no
        encoder was trained on. `add_bos_token` and `add_eos_token` have no effect, as in
        transformers 5.

        Args:
            tokenizer: tokenizer made from these files. Without CLS, SEP or a mask token it does not
                belong to an encoder and is not checked.
            own_template: whether transformers uses the template of the tokenizer's class and
                ignores the one in tokenizer.json.
            lacks_template: whether that class puts no tokens around texts by itself.

        Raises:
            ValueError: the post-processor of tokenizer.json puts other tokens around texts, or
                none, or has other ids for them; or texts are truncated at the beginning.
        """
        cls, sep = tokenizer.cls_token, tokenizer.sep_token
        if None in (cls, sep, tokenizer.mask_token):
            return
        cut = (self.full.get("truncation") or {}).get("direction", "Right").lower()
        if (side := self.config.get("truncation_side", cut)) != "right":
            raise ValueError(
                "Texts of an encoder must be truncated at their end. Received: "
                f"truncation_side={side!r} in {self.path}"
            )
        second = 1 if own_template else None  # segment of B in a pair; None = not specified
        step = None if own_template else self.full.get("post_processor")
        if not (own_template or step) and (lacks_template or self._runs_tokenizer_json()):
            raise ValueError(
                f"A tokenizer.json must put the texts of an encoder between {cls} and {sep}; "
                f"{self.class_name} of transformers does not. Received: no post_processor in "
                f"{self.path / 'tokenizer.json'}"
            )
        for processor in _steps(step, "processors") if step else []:
            kind = processor["type"]
            if kind in ("BertProcessing", "RobertaProcessing"):
                ids = {name: [number] for name, number in (processor["cls"], processor["sep"])}
                ends = [processor["cls"][0], "A", processor["sep"][0]]
                between = [processor["sep"][0]] * (1 if kind == "BertProcessing" else 2)
                single, pair = ends, [*ends[:-1], *between, "B", ends[-1]]
                second = 1 if kind == "BertProcessing" else 0
            elif kind == "TemplateProcessing":
                ids = {
                    name: x["ids"] for name, x in (processor.get("special_tokens") or {}).items()
                }
                single, pair = (_names_in(processor.get(name)) for name in ("single", "pair"))
                second = max(_types_in(processor.get("pair")), default=0)
            else:  # ByteLevel only changes offsets
                continue
            between = [sep] * tokenizer.pair_separators
            usual = [cls, "A", sep], [cls, "A", *between, "B", sep]
            cls_last = ["A", sep, cls], ["A", *between, "B", sep, cls]
            possible = (usual, cls_last) if tokenizer.kind == "unigram" else (usual,)
            if tokenizer.languages:
                begin, end = (
                    [tokenizer.vocabulary[i] for i in ids]
                    for ids in (tokenizer.prefix_ids, tokenizer.suffix_ids)
                )
                usual = [*begin, "A", *end], [*begin, "A", *between, "B", *end]
                possible = (usual,)
            if not any(
                single == own_single and pair in (own_pair, ["A", "B"])
                for own_single, own_pair in possible
            ):
                received = f"{' '.join(single)} and {' '.join(pair)}"
                raise ValueError(
                    f"The post_processor must make {' '.join(map(str, usual[0]))} and "
                    f"{' '.join(map(str, usual[1]))}, without other tokens. Received: "
                    f"post_processor {received} in {self.path / 'tokenizer.json'}"
                )
            own_ids = {cls: [tokenizer.cls_id], sep: [tokenizer.sep_id]}
            if wrong := {x: ids[x] for x in own_ids if ids.get(x, own_ids[x]) != own_ids[x]}:
                raise ValueError(
                    f"The post_processor must have the ids of the vocabulary, {own_ids}. "
                    f"Received: {wrong} in {self.path / 'tokenizer.json'}"
                )
        self._say_segments(0 if tokenizer.pair_separators == 2 else second)

    def _runs_tokenizer_json(self) -> bool:
        """Whether transformers runs an encoder's tokenizer.json as it is, for these files."""
        return (
            self.class_name in ("PreTrainedTokenizer", "TokenizersBackend")
            and bool(self.full.get("model"))
            and self.model_config.get("model_type") not in (None, "model2vec")
        )

    def _say_segments(self, second: int | None) -> None:
        """Warns if transformers gives both texts of a pair the same segment, unlike kbert.

        `second` is the segment of the second text in transformers; None if the files do not set it.
        """
        inputs = self.config.get("model_input_names")
        if inputs is not None and "token_type_ids" not in inputs:
            second = 0
        segments = self.model_config.get("type_vocab_size")
        if second == 0 and isinstance(segments, int) and segments > 1:
            logging.warning(
                "%s: the second text of a pair has segment 1 in kbert, but 0 in transformers "
                "(config.json has type_vocab_size=%d, the tokenizer has no token_type_ids)",
                self.path, segments,
            )  # fmt: skip

    def warn_read_as_written(self, path: Path, class_name: str, model: str) -> None:
        """Warns that transformers uses another class than the file `path` was written for.

        `class_name` is that class, and `model` the name of the model in the file.
        """
        logging.warning(
            "%s: read as written, because %s has no %s model; transformers 5 gives other ids",
            path, class_name, model,
        )  # fmt: skip

    def refuse(self, rule: str, asked: Mapping[str, Any]) -> None:
        """Raises ValueError if `asked` is not empty.

        `asked` maps names of settings in tokenizer.json to values that break `rule`, a sentence.
        """
        if asked:
            received = ", ".join(f"{name}={value!r}" for name, value in asked.items())
            raise ValueError(f"{rule}. Received: {received} in {self.path / 'tokenizer.json'}")


def _type_of(model: Mapping[str, Any]) -> str | None:
    """Returns the type of a model in a tokenizer.json from before 2021, which does not name it.

    Its fields show whether it is "Unigram", "BPE" or "WordPiece"; None = none of these.
    """
    if isinstance(model.get("vocab"), list):
        return "Unigram"
    if "merges" in model:
        return "BPE"
    return "WordPiece" if "max_input_chars_per_word" in model else None


def _steps(step: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    """Returns the steps of a pipeline component as a list; nested sequences are flattened.

    A component that has no list under `key` is a single step.
    """
    if not isinstance(step.get(key), list):
        return [dict(step)]
    return [leaf for inner in step[key] if isinstance(inner, dict) for leaf in _steps(inner, key)]


def _names_in(template: Any) -> list[str]:
    """Returns the special tokens and text names ("A", "B") of a post-processor's template."""
    return [next(iter(part.values()))["id"] for part in template or []]


def _types_in(template: Any) -> list[int]:
    """Returns the segment of each token and text of a post-processor's template."""
    return [next(iter(part.values())).get("type_id", 0) for part in template or []]


def text_of(token: str | dict[str, Any]) -> str:
    """Returns the text of a special token, given as a string or as an object with options."""
    return token["content"] if isinstance(token, dict) else token
