"""The only place for late imports, which are chosen by a name.

Names in files and flags decide what a program needs: the format of a folder, the kind of a task or
of a model, the package of an extra, a user's own module. The public names of a package load on
first use. Everything else is imported at the top of its module.
"""

import ast
import contextlib
import contextvars
import functools
import gc
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

_T = TypeVar("_T")

# A program of kbert has up to 34,000 objects before it imports Keras; Python with pandas 58,000.
_FIRST_OBJECTS = 45_000

# Sort -> name -> "module", or "module:attribute". Core names higher packages only here.
TABLE = {
    # In the order in which formats are tried on a folder. Each module has `READS` (its folders, in
    # words), `is_folder(path)` and `read_folder(path) -> Checkpoint`. It may have `why_not(files)`:
    # for a folder that no format reads, the reason why this one does not, by its file names. A
    # format that configs list in `FORMATS` also has `write_folder(folder, config, arrays,
    # **options)` and `TAKES`, the options of `write_checkpoint` that it supports.
    "checkpoint format": {
        "kbert": "kbert.checkpoints.preset",
        "huggingface": "kbert.checkpoints.huggingface.huggingface",
        "keras_hub": "kbert.checkpoints.keras_hub.checkpoint",
        "keras_nlp": "kbert.checkpoints.keras_hub.model_h5",
        "tf_hub": "kbert.checkpoints.google.saved_model",
        "google": "kbert.checkpoints.google.checkpoint",
        "bilm": "kbert.checkpoints.bilm.checkpoint",
        "fairseq": "kbert.checkpoints.fairseq.checkpoint",
    },
    # Hugging Face's architectures, by `model_type`, or by `name` where several share a
    # `model_type`, in the order in which a config is compared with them.
    "architecture": {
        "bert": "kbert.checkpoints.huggingface.architectures.bert:Bert",
        "roberta": "kbert.checkpoints.huggingface.architectures.roberta:Roberta",
        "xlm-roberta": "kbert.checkpoints.huggingface.architectures.roberta:XlmRoberta",
        "albert": "kbert.checkpoints.huggingface.architectures.albert:Albert",
        "distilbert": "kbert.checkpoints.huggingface.architectures.distilbert:DistilBert",
        "electra": "kbert.checkpoints.huggingface.architectures.electra:Electra",
        "modernbert": "kbert.checkpoints.huggingface.architectures.modernbert:ModernBert",
        "deberta-v2": "kbert.models.deberta.huggingface:DebertaV2",
        "neobert": "kbert.checkpoints.huggingface.architectures.rotary.neobert:NeoBert",
        "eurobert": "kbert.checkpoints.huggingface.architectures.rotary.eurobert:EuroBert",
        "nomic_bert": "kbert.checkpoints.huggingface.architectures.rotary.nomic:NomicBert",
        "roformer": "kbert.checkpoints.huggingface.architectures.rotary.roformer:RoFormer",
        "mosaicbert": "kbert.checkpoints.huggingface.architectures.mosaicbert:MosaicBert",
        "ernie": "kbert.models.ernie.huggingface:Ernie",
        "longformer": "kbert.models.longformer.huggingface:Longformer",
        "mobilebert": "kbert.models.mobilebert.huggingface:MobileBert",
        "mpnet": "kbert.models.mpnet.huggingface:MpNet",
        "convbert": "kbert.models.convbert.huggingface:ConvBert",
        "squeezebert": "kbert.models.squeezebert.huggingface:SqueezeBert",
        "xlnet": "kbert.models.xlnet.huggingface:XlNet",
        "reformer": "kbert.models.reformer.huggingface:Reformer",
        "gpt2": "kbert.checkpoints.huggingface.architectures.gpt2:Gpt2",
        "openai-gpt": "kbert.checkpoints.huggingface.architectures.openai_gpt:OpenAIGpt",
        "modernbert-decoder": (
            "kbert.checkpoints.huggingface.architectures.modern_decoder:ModernBertDecoder"
        ),
        "bart": "kbert.models.bart.huggingface:Bart",
        "mbart": "kbert.models.bart.huggingface:MBart",
        "pegasus": "kbert.models.bart.huggingface:Pegasus",
        "marian": "kbert.models.bart.huggingface:Marian",
        "t5": "kbert.models.t5.huggingface:T5",
        "mt5": "kbert.models.t5.huggingface:MT5",
        "camembert": "kbert.checkpoints.huggingface.architectures.roberta:Camembert",
        "deberta": "kbert.models.deberta.huggingface:Deberta",
    },
    # Loaders of a folder's tokenizer: `load(TokenizerFolder, **options)`.
    "tokenizer": {
        "characters": "kbert.tokenizers.words.loading:load_characters",
        "words": "kbert.tokenizers.words.loading:load_words",
        "wordpiece": "kbert.tokenizers.wordpiece.loading:load_wordpiece",
        "bpe": "kbert.tokenizers.bpe.loading:load_byte_pair",
        "gpt": "kbert.tokenizers.gpt.loading:load_gpt",
        "unigram": "kbert.tokenizers.unigram.loading:load_unigram",
        "marian": "kbert.tokenizers.marian.loading:load_marian",
        "keras_hub": "kbert.tokenizers.loading_keras_hub:load_keras_hub",
    },
    # Each has `write`, `load`, `PRECISIONS`, `FILE`, and `CALIBRATES`: whether `write` takes
    # batches for calibration. A runtime whose rows have a few fixed widths has `settle_widths`.
    "runtime": {
        "onnx": "kbert.export.onnx.runtime",
        "openvino": "kbert.export.openvino.runtime",
        "litert": "kbert.export.litert",
    },
    # Tokenizers that run inside a runtime: `write(folder, rows, count)`, `run`, and `PACKAGE`.
    "tokenizer graph": {
        "onnx": "kbert.export.onnx.text",
        "openvino": "kbert.export.openvino.text",
    },
    # Implementations of the `export` of tasks and models, and what only some exports need.
    "export": {
        "task": "kbert.export.task:export_task",
        "elmo": "kbert.export.elmo:export_embeddings",
        "savedmodel": "kbert.export.savedmodel.write:export_saved_model",
        "runtime task": "kbert.export.runtime_task:RuntimeTask",
        "stored weights": "kbert.export.savedmodel.stored:StoredWeights",
    },
    # Answers of an exported task, by its kind, without its layers.
    "array answers": {
        "classify": "kbert.export.array_answers:ClassAnswers",
        "regress": "kbert.export.array_answers:NumberAnswers",
        "embed": "kbert.export.array_answers:VectorAnswers",
    },
    # Models that a task is built on, by the kind of their config: `make(config, dtype=)`.
    "model": {
        "elmo": "kbert.models.elmo.encoder:make_elmo_encoder",
        "decoder": "kbert.models.generators.decoder:Decoder",
        "seq2seq": "kbert.models.generators.seq2seq:Seq2Seq",
    },
    # Sizes of a model, by the kind of its config: `describe(row, name)`.
    "description": {
        "elmo": "kbert.models.elmo.description:describe_elmo",
        "decoder": "kbert.models.generators.description:describe_generator",
        "seq2seq": "kbert.models.generators.description:describe_generator",
    },
    # Encoders from the folder of another kind of model: `load(checkpoint, dtype, strict, pooler)`.
    "encoder of": {
        "elmo": "kbert.models.elmo.encoder:load_encoder",
        "decoder": "kbert.models.generators.decoder_encoder:load_encoder",
        "seq2seq": "kbert.models.generators.seq2seq_encoder:load_encoder",
    },
    # Models that tasks read as encoders, by the kind of their config: `view(model, pooler=)`.
    "view as an encoder": {
        "seq2seq": "kbert.models.generators.seq2seq_encoder:Seq2SeqEncoder",
    },
    # Layers that a task makes for some of its settings.
    "layer of settings": {"features": "kbert.heads.token_features:token_features"},
    # Optimizers, by the name in settings and recipes.
    "optimizer": {
        "adamw": "kbert.training.optimization.optimizers:AdamW",
        "stable_adamw": "kbert.training.optimization.optimizers:StableAdamW",
        "muon": "kbert.training.optimization.optimizers:Muon",
        "lamb": "kbert.training.optimization.optimizers:Lamb",
        "adagrad": "keras.optimizers:Adagrad",
        "adafactor": "kbert.training.optimization.adafactor:Adafactor",
    },
    # Edits of a model, by the key in the preset that records them: `do(model, content, source)`.
    "edits of a preset": {"adapters": "kbert.edit.adapters.base:restore"},
    # Files of folders that hold several presets: `load(asked, folder, **options of from_preset)`.
    "file of presets": {
        "ensemble.json": "kbert.tasks.fine_tuning.ensemble:load_ensemble",
        "multi_task.json": "kbert.tasks.fine_tuning.multi_task:load_one",
    },
    # Methods of Keras models that kbert implements as edits.
    "edit of Keras": {"enable_lora": "kbert.edit.adapters.base:enable_lora"},
    # Files of folders that hold only an edit: each an `EditFile`.
    "file of an edit": {
        "adapter.json": "kbert.edit.adapters.files:OURS",
        "adapter_config.json": "kbert.edit.adapters.files:THEIRS",
    },
    # The terms of a distillation's loss.
    "term": {
        "soft_targets": "kbert.distillation.terms:SoftTargets",
        "own": "kbert.distillation.terms:OwnLoss",
        "hidden_cosine": "kbert.distillation.terms:LastHiddenCosine",
        "embeddings": "kbert.distillation.terms:EmbeddingLoss",
        "hidden_states": "kbert.distillation.terms:HiddenStates",
        "attention_scores": "kbert.distillation.terms:AttentionScores",
        "relations": "kbert.distillation.terms:AttentionRelations",
        "feature_maps": "kbert.distillation.transfer:FeatureMaps",
        "feature_means": "kbert.distillation.transfer:FeatureMeans",
        "feature_variances": "kbert.distillation.transfer:FeatureVariances",
        "attention_maps": "kbert.distillation.transfer:AttentionMaps",
    },
    # Settings of the tasks on tables, by kind: flags are made of them without importing the task.
    "task options": {
        "classify": "kbert.tasks.fine_tuning.options:TextClassifierOptions",
        "regress": "kbert.tasks.fine_tuning.options:TextOptions",
        "tag": "kbert.tasks.fine_tuning.options:TokenClassifierOptions",
        "choose": "kbert.tasks.fine_tuning.options:MultipleChoiceOptions",
        "answer": "kbert.tasks.question_answering.options:QuestionAnswererOptions",
        "embed": "kbert.tasks.embedding.options:TextEmbedderOptions",
        "denoise": "kbert.tasks.embedding.options:TextDenoiserOptions",
        "skip_thought": "kbert.tasks.embedding.options:DecodingOptions",
        "text2text": "kbert.tasks.generation.options:TextToTextOptions",
    },
    # The rest are classes, registered under these names when their module is imported
    # (`kbert.core.registry`).
    "config": {
        "encoder": "kbert.configs.encoder:EncoderConfig",
        "decoder": "kbert.configs.decoder:DecoderConfig",
        "seq2seq": "kbert.configs.seq2seq:Seq2SeqConfig",
        "elmo": "kbert.configs.elmo:ElmoConfig",
        "awd_lstm": "kbert.configs.awd_lstm:AwdLstmConfig",
        "static": "kbert.configs.static:StaticConfig",
        "reformer": "kbert.configs.reformer:ReformerConfig",
        "transformer_xl": "kbert.configs.transformer_xl:TransformerXlConfig",
        "universal_transformer": "kbert.configs.universal_transformer:UniversalTransformerConfig",
        "xlnet": "kbert.configs.xlnet:XlnetConfig",
    },
    # Encoders, by the kind of their config.
    "encoder": {
        "encoder": "kbert.models.encoder:Encoder",
        "awd_lstm": "kbert.models.awd_lstm.awd_lstm:AwdLstm",
        "static": "kbert.models.static:Static",
        "reformer": "kbert.models.reformer.reformer:Reformer",
        "transformer_xl": "kbert.models.transformer_xl:TransformerXl",
        "universal_transformer": "kbert.models.universal_transformer:UniversalTransformer",
        "xlnet": "kbert.models.xlnet.xlnet:Xlnet",
    },
    "tokenizer class": {
        "characters": "kbert.tokenizers.words.characters:CharacterTokenizer",
        "words": "kbert.tokenizers.words.tokenizer:WordTokenizer",
        "wordpiece": "kbert.tokenizers.wordpiece.tokenizer:WordPieceTokenizer",
        "bpe": "kbert.tokenizers.bpe.tokenizer:BytePairTokenizer",
        "gpt": "kbert.tokenizers.gpt.tokenizer:GptTokenizer",
        "unigram": "kbert.tokenizers.unigram.tokenizer:UnigramTokenizer",
        "marian": "kbert.tokenizers.marian.tokenizer:MarianTokenizer",
    },
    "part": {
        "bottleneck": "kbert.models.mobilebert.bottleneck:BottleneckPart",
        "disentangled": "kbert.models.deberta.attention:Disentangled",
        "dynamic_convolution": "kbert.models.convbert.convolution:DynamicConvolution",
        "global_tokens": "kbert.models.longformer.attention:GlobalTokens",
        "grouped": "kbert.models.squeezebert.grouped:Grouped",
        "relative_bias": "kbert.models.mpnet.attention:RelativeBias",
        "task_embeddings": "kbert.models.ernie.task_embeddings:TaskEmbeddings",
    },
    "edit": {
        "pruned": "kbert.edit.pruned:Pruned",
        "rounding": "kbert.edit.rounding:Rounding",
        "movement": "kbert.edit.movement:Movement",
    },
    "noise": {
        "bart": "kbert.data.denoising.bart:Bart",
        "t5": "kbert.data.denoising.spans:SpanCorruption",
        "mass": "kbert.data.denoising.mass:Mass",
        "pegasus": "kbert.data.denoising.gap_sentences:GapSentences",
        "prefix_lm": "kbert.data.denoising.prefix:PrefixLM",
    },
    "adapter": {
        "houlsby": "kbert.edit.adapters.bottleneck:Houlsby",
        "pfeiffer": "kbert.edit.adapters.bottleneck:Pfeiffer",
        "lora": "kbert.edit.adapters.lora:Lora",
        "bitfit": "kbert.edit.adapters.lora:BitFit",
        "prefix": "kbert.edit.adapters.attention:Prefix",
        "pal": "kbert.edit.adapters.attention:ProjectedAttention",
    },
    "task": {
        "pretrain": "kbert.tasks.pretraining.pretraining:Pretraining",
        "detect_replaced": "kbert.tasks.pretraining.replaced_tokens:ReplacedTokenDetection",
        "unilm": "kbert.tasks.pretraining.unilm:UniLM",
        "permutation_lm": "kbert.tasks.pretraining.permutation_lm:PermutationLM",
        "memory_lm": "kbert.tasks.pretraining.memory_lm:MemoryLM",
        "bidirectional_lm": "kbert.tasks.pretraining.bidirectional_lm:BidirectionalLM",
        "classify": "kbert.tasks.fine_tuning.text_classifier:TextClassifier",
        "regress": "kbert.tasks.fine_tuning.text_regressor:TextRegressor",
        "tag": "kbert.tasks.fine_tuning.token_classifier:TokenClassifier",
        "choose": "kbert.tasks.fine_tuning.multiple_choice:MultipleChoice",
        "answer": "kbert.tasks.question_answering.question_answerer:QuestionAnswerer",
        "embed": "kbert.tasks.embedding.text_embedder:TextEmbedder",
        "denoise": "kbert.tasks.embedding.text_denoiser:TextDenoiser",
        "skip_thought": "kbert.tasks.embedding.skip_thought:SkipThought",
        "causal_lm": "kbert.tasks.generation.causal_lm:CausalLM",
        "masked_and_causal": "kbert.tasks.generation.masked_and_causal:MaskedAndCausal",
        "text2text": "kbert.tasks.generation.text_to_text:TextToText",
        "translate": "kbert.tasks.generation.translator:Translator",
        "unilm_translate": "kbert.tasks.generation.unilm_translator:UniLMTranslator",
    },
}


@contextlib.contextmanager
def without_collection() -> Iterator[None]:
    """Turns garbage collection off while Keras and its backend are imported for the first time.

    They create a million objects that live as long as the process. Collections in between look for
    garbage among them, a fifth of the time of `import tensorflow`, and so does the end of the
    process. So what exists after the import is left out of later collections (`gc.freeze`;
    `gc.unfreeze()` undoes it), unless a program had created much before, which might become
    garbage. Does nothing if Keras was imported before, or collection is off.

    Example:
        >>> with without_collection():
        ...     import keras
        >>> gc.isenabled()
        True
    """
    if "keras" in sys.modules or not gc.isenabled():
        yield
        return
    has_just_begun = len(gc.get_objects()) < _FIRST_OBJECTS
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        if has_just_begun and "keras" in sys.modules:
            gc.freeze()


class NeedsTensorFlow(ValueError):
    """Raised where TensorFlow is needed, but is not installed or left out."""


_is_left_out: contextvars.ContextVar[bool] = contextvars.ContextVar("is_left_out", default=False)


class LazyModule(ModuleType):
    """Module of TensorFlow that is imported when one of its names is first read.

    On JAX and PyTorch everything that needs no `tf.data` and no graphs works without TensorFlow.

    Args:
        name: the module's name, as in an import.

    Example:
        >>> LazyModule("tensorflow.math").add(1, 2).numpy().item()
        3
    """

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name not in ("__internal__", "__version__"):
            raise AttributeError(name)  # tools look for such names in any module
        if _is_left_out.get():
            raise NeedsTensorFlow(f"TensorFlow is left out here. Received: tf.{name}")
        try:
            with without_collection():
                module = importlib.import_module(self.__name__)
        except ImportError as error:
            raise ImportError(
                "TensorFlow is required for streams of data, tokenizers inside graphs and "
                f"SavedModels (pip install tensorflow tensorflow-text). Received: {error}"
            ) from error
        self.__dict__.update({k: x for k, x in vars(module).items() if not k.startswith("__")})
        return getattr(module, name)

    def __reduce__(self) -> tuple[Callable, tuple[str]]:
        return importlib.import_module, (self.__name__,)  # pickled as the module itself is


if TYPE_CHECKING:
    import tensorflow as tf
else:
    tf = LazyModule("tensorflow")


def has_tensorflow() -> bool:
    """Returns whether TensorFlow is to be used: it is installed, and not left out here."""
    return not _is_left_out.get() and _is_installed()


def try_without_tensorflow(function: Callable[[], _T]) -> _T:
    """Calls a function without importing TensorFlow; if the function needs it, calls it again.

    On JAX and PyTorch much needs no TensorFlow, and its import takes seconds and half a gigabyte.
    If it was imported before, the function uses it.

    Example:
        >>> try_without_tensorflow(lambda: tf.constant(1).numpy().item())
        1
    """
    if "tensorflow" not in sys.modules and _is_installed():
        token = _is_left_out.set(True)
        try:
            return function()
        except NeedsTensorFlow:
            pass  # below, with it
        finally:
            _is_left_out.reset(token)
    return function()


@functools.cache
def _is_installed() -> bool:
    """Returns whether TensorFlow is installed, without importing it."""
    try:
        return importlib.util.find_spec("tensorflow") is not None
    except (ImportError, ValueError):  # a tool that hides it may raise, or put None in sys.modules
        return False


def public_names(package: str) -> tuple[Callable, Callable, list[str]]:
    """Returns `__getattr__`, `__dir__` and `__all__` of a package whose names load on first use.

    The names are read in the package's `__init__.py`. Most are imported there under
    `if TYPE_CHECKING:`, for type checkers and editors. A function in a module of the same name is
    imported at once.

    Args:
        package: `__name__` of the package; the call must come while the package is imported.

    Raises:
        ImportError: the package has no source, as in a program that is frozen without sources.

    Example:
        >>> import kbert.configs
        >>> kbert.configs.ElmoConfig.kind, kbert.configs.__all__[:2]
        ('elmo', ['AwdLstmConfig', 'Config'])
    """
    module = sys.modules[package]
    loader: Any = module.__spec__.loader if module.__spec__ else None
    origins: dict[str, tuple[str, str]] = {}
    if (source := loader.get_source(package)) is None:
        raise ImportError(
            f"The public names of a package must be readable from its source. Received: {package} "
            "without it"
        )
    for statement in ast.parse(source).body:
        inner = statement.body if isinstance(statement, ast.If) else [statement]
        for line in inner:
            if isinstance(line, ast.ImportFrom) and line.module:
                origins |= {x.asname: (line.module, x.name) for x in line.names if x.asname}

    def getattribute(name: str) -> Any:
        path = f"{package}.{name}"
        origin = origins.get(name)
        if origin is not None and origin[0] != package:
            with without_collection():
                value = getattr(importlib.import_module(origin[0]), origin[1])
        elif not name.startswith("__") and importlib.util.find_spec(path):
            value = importlib.import_module(path)
        else:
            raise AttributeError(f"module {package!r} has no attribute {name!r}", name=name)
        setattr(module, name, value)
        return value

    return getattribute, lambda: sorted({*vars(module), *origins}), sorted(origins)


def load(sort: str, name: str) -> Any:
    """Imports the module or attribute that `TABLE` lists under a sort and a name.

    Example:
        >>> load("checkpoint format", "kbert").__name__
        'kbert.checkpoints.preset'
    """
    module, _, attribute = TABLE[sort][name].partition(":")
    with without_collection():
        imported = importlib.import_module(module)
    return getattr(imported, attribute) if attribute else imported


def load_each(sort: str) -> Iterator[tuple[str, Any]]:
    """Yields (name, module or attribute) for each entry of `TABLE` under a sort.

    Each is imported when it is reached.
    """
    return ((name, load(sort, name)) for name in TABLE[sort])


def optional(module: str, extra: str, what: str = "This format") -> ModuleType:
    """Imports a module of a package that an extra installs.

    Args:
        module: name of the module.
        extra: name of the extra, as in `pip install 'kbert[EXTRA]'`.
        what: subject of the error message: the feature that needs the package.

    Raises:
        ImportError: the package is not installed; the message names the extra.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(
            f"{what} needs the extra: pip install 'kbert[{extra}]'. Received: {error}"
        ) from error


def user_module(module: str) -> ModuleType:
    """Imports a module by its name, or a Python file, so that its classes register.

    Args:
        module: name of a module or path of a file, such as "my_package.ordinal" or
            "tasks/ordinal.py".

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: there is no such module, or a file has the name of another imported module.
    """
    if not module.endswith(".py"):
        try:
            return importlib.import_module(module)
        except ModuleNotFoundError as error:
            raise ValueError(
                "A module must be named as in an import, from a folder of PYTHONPATH, or by its "
                f"file (….py). Received: {module!r} ({error})"
            ) from error
    path = Path(module).resolve()
    if not path.is_file():
        raise FileNotFoundError(f"No such file of a module. Received: {module!r}")
    loaded = sys.modules.get(path.stem)
    if loaded is not None:
        if os.path.realpath(getattr(loaded, "__file__", None) or "") == os.fspath(path):
            return loaded
        raise ValueError(
            "The name of a module's file must not be that of another module. "
            f"Received: {module!r}, next to {loaded.__name__} of {loaded.__file__}"
        )
    spec: Any = importlib.util.spec_from_file_location(path.stem, path)
    imported = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = imported
    try:
        spec.loader.exec_module(imported)
    except BaseException:
        del sys.modules[path.stem]
        raise
    return imported
