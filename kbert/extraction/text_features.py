"""A scikit-learn transformer that extracts features of texts in a pipeline.

scikit-learn (`pip install 'kbert[sklearn]'`) is not imported on load: the class has the methods
that scikit-learn requires.

Shapes: `N` texts, `D` width of the features.
"""

import functools
import inspect
from typing import Any, Self, cast

import keras
import numpy as np

from kbert.core import registry
from kbert.core.layer_choice import LayerChoice, choose_states
from kbert.extraction.extract import features
from kbert.extraction.readers import reading_model
from kbert.inference import BATCH_SIZE
from kbert.io.paths import Path
from kbert.models import Encoder
from kbert.tokenizers import load_tokenizer
from kbert.tokenizers.base import Tokenizer


@functools.lru_cache(maxsize=2)
def _loaded(preset: str, dtype: str | None, files: tuple) -> tuple[keras.Model, Any]:
    """Returns encoder and tokenizer of a preset; two presets are cached for all copies.

    Args:
        preset: name or folder of the preset.
        dtype: dtype of the encoder.
        files: result of `_files_of`: a preset that was written again is loaded again.
    """
    return Encoder.from_preset(preset, dtype=dtype), load_tokenizer(preset)


def _files_of(preset: str) -> tuple:
    """Returns the resolved path of a preset, and name, size and time of change of its files.

    For a name on the hub, it is that name.
    """
    path = Path(preset)
    try:
        files = [(file, file.stat()) for file in (path, *path.rglob("*")) if file.is_file()]
    except OSError:  # such as a URL that cannot be listed: loading names the reason
        return (preset,)
    states = sorted((str(file), state.st_size, state.st_mtime_ns) for file, state in files)
    return (str(path.resolve()), *states) if states else (preset,)


class TextFeatures:
    """`kbert.features` as a step of a scikit-learn pipeline: texts in, one vector per text out.

    `fit` trains nothing, it only loads the encoder. Copies (`sklearn.base.clone`) share it.

    A transformer made from a preset's name is pickled as that name and the settings. So
    `joblib.dump` of a pipeline stays small, and each of `n_jobs` processes loads the encoder.
    TensorFlow uses all cores already, so `n_jobs=1` is as fast. A transformer made from an encoder
    is pickled with the encoder.

    A search over `layers` runs the encoder again for each fold; `Pipeline(memory=folder)` caches
    the features.

    Args:
        encoder: name or folder of an encoder's preset, or a model that `kbert.features` reads.
        tokenizer: tokenizer of the encoder; None = the preset's. Required with a model.
        layers: hidden states to use: "last", another name or indices; see `kbert.features`.
        pooling: "mean" of the tokens, "max" or "cls" (the vector of [CLS]).
        special_tokens: whether [CLS] and [SEP] count in the mean and the maximum.
        max_length: most tokens of a sequence, special tokens included; None = the encoder's
            `max_positions`.
        doc_stride: tokens between the starts of the windows of a longer text; None truncates it.
        batch_size: sequences of a batch.
        dtype: dtype of a preset's encoder, such as "mixed_bfloat16"; None = Keras' default.

    Example:
        >>> import kbert
        >>> from kbert.tokenizers import SPECIAL_TOKENS
        >>> from sklearn.linear_model import LogisticRegression
        >>> from sklearn.pipeline import make_pipeline
        >>> tokenizer = kbert.WordPieceTokenizer([*SPECIAL_TOKENS, "win", "a", "prize", "hi"])
        >>> encoder = kbert.Encoder(kbert.family("bert-tiny").replace(vocabulary_size=9))
        >>> model = make_pipeline(TextFeatures(encoder, tokenizer), LogisticRegression())
        >>> model.fit(["win a prize", "hi", "win win", "a hi"], [1, 0, 1, 0]).predict(["win"])
        array([1])
    """

    def __init__(
        self,
        encoder: str | keras.Model,
        tokenizer: Tokenizer | None = None,
        *,
        layers: LayerChoice = "last",
        pooling: str = "mean",
        special_tokens: bool = True,
        max_length: int | None = None,
        doc_stride: int | None = None,
        batch_size: int = BATCH_SIZE,
        dtype: str | None = None,
    ) -> None:
        # scikit-learn's rule: arguments are stored unchanged, and `fit` checks them.
        self.encoder = encoder
        self.tokenizer = tokenizer
        self.layers = layers
        self.pooling = pooling
        self.special_tokens = special_tokens
        self.max_length = max_length
        self.doc_stride = doc_stride
        self.batch_size = batch_size
        self.dtype = dtype

    def fit(self, texts: Any = None, labels: Any = None) -> Self:
        """Loads the encoder and checks the settings; texts and labels are not read."""
        self._width()
        return self

    def transform(self, texts: Any) -> np.ndarray:
        """Returns the features (N, D) float32 of strings or pairs of strings.

        Raises:
            ValueError: `pooling` is None, or `kbert.features` raises it (a setting is out of
                range).
        """
        encoder, tokenizer = self._model()
        self._width()
        names = ("layers", "pooling", "special_tokens", "max_length", "doc_stride", "batch_size")
        settings = {name: getattr(self, name) for name in names}
        # One vector per text: `_width` raises if `pooling` is None.
        return cast(np.ndarray, features(encoder, tokenizer, texts, verbose=0, **settings))

    def fit_transform(self, texts: Any, labels: Any = None) -> np.ndarray:
        """Runs `fit`, then `transform`."""
        return self.fit(texts, labels).transform(texts)

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        """Returns D names: "features0", "features1", …"""
        return np.array([f"features{i}" for i in range(self._width())], dtype=object)

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Returns the constructor's arguments."""
        return {name: getattr(self, name) for name in _arguments(type(self))}

    def set_params(self, **params: Any) -> Self:
        """Sets some of the constructor's arguments.

        Raises:
            ValueError: an argument is unknown.
        """
        unknown = sorted(set(params) - set(_arguments(type(self))))
        if unknown:
            raise ValueError(
                f"Parameters of {type(self).__name__} must be from "
                f"{', '.join(_arguments(type(self)))}. Received: {', '.join(unknown)}"
            )
        for name, value in params.items():
            setattr(self, name, value)
        return self

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(registry.current(state))  # renames settings of older versions' pickles

    def __sklearn_clone__(self) -> Self:
        # The copy shares the encoder; scikit-learn's default would copy every weight.
        return type(self)(**self.get_params())

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import InputTags, Tags, TargetTags, TransformerTags

        return Tags(
            estimator_type="transformer",
            target_tags=TargetTags(required=False),
            transformer_tags=TransformerTags(preserves_dtype=[]),
            input_tags=InputTags(two_d_array=False, one_d_array=True, string=True),
            requires_fit=False,
            no_validation=True,
        )

    def __repr__(self) -> str:
        encoder = self.encoder if isinstance(self.encoder, str) else type(self.encoder).__name__
        return (
            f"{type(self).__name__}({encoder!r}, layers={self.layers!r}, pooling={self.pooling!r})"
        )

    def _model(self) -> tuple[keras.Model, Any]:
        """Returns encoder and tokenizer; ValueError for an encoder without a tokenizer."""
        if isinstance(self.encoder, keras.Model):
            if self.tokenizer is None:
                raise ValueError(
                    "An encoder requires its tokenizer: pass both, or a preset. Received: "
                    "tokenizer=None"
                )
            return self.encoder, self.tokenizer
        preset = str(self.encoder)
        encoder, tokenizer = _loaded(preset, self.dtype, _files_of(preset))
        return encoder, self.tokenizer or tokenizer

    def _width(self) -> int:
        """Returns the width D of the features; ValueError if `pooling` is None."""
        if self.pooling is None:
            raise ValueError(
                "A pipeline step requires one vector per text: pooling must be cls, mean or max. "
                "Received: pooling=None"
            )
        encoder = reading_model(self._model()[0])
        chosen = choose_states(self.layers, encoder, trained=False)
        return chosen.num_joined * encoder.config.hidden_size


def _arguments(kind: type) -> list[str]:
    return list(inspect.signature(kind).parameters)
