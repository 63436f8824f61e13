"""What adapters share: they are added to a built encoder, chosen, merged and taken out again.

An adapter is a set of small layers in the slots of an encoder's layers (`kbert.layers.slots`).
The weights of the encoder itself, its base, stay as they are, and are frozen. So one base carries
many adapters, of which one runs, or none.
"""

import contextlib
import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import keras

from kbert.core import registry
from kbert.core.options import Options, option, parse_kind
from kbert.core.registry import Registered
from kbert.core.types import Shape
from kbert.edit.adapters.deltas import DenseDelta
from kbert.layers.slots import Editable, Switch
from kbert.models.edits import Variants
from kbert.models.encoder import Encoder
from kbert.models.generators.decoder import Decoder

# A layer with a slot, what is put into it, and what that is built with.
Filled = tuple[Editable, keras.layers.Layer, Shape]


class Adapter(Registered, Options, sort="adapter"):
    """A frozen dataclass of its options that says which layers go into which slots.

    A subclass is known by its `kind` once it is defined, and is added by it.

    Attributes:
        kind: what `add` and folders call it.
        learning_rate: the peak of `fit`, where none is given.
        takes_decoders: whether it runs in a KV cache, token by token, as in a whole row.
    """

    learning_rate: ClassVar[float] = 1e-3
    takes_decoders: ClassVar[bool] = True

    pooler: bool | None = option(
        None,
        help="Whether the pooler is trained too, as a whole, by a difference of its own; none = "
        "where it was newly initialised with a task's head.",
    )

    def check_encoder(self, encoder: Any) -> None:
        """Raises ValueError where the encoder has no place for it."""

    def slots(self, encoder: Any, **kwargs: Any) -> Iterator[Filled]:
        """The slots that it fills, in the encoder's order.

        Args:
            encoder: a built one.
            **kwargs: `name` and `dtype` of the layers.
        """
        raise NotImplementedError

    def merge(self, encoder: Any, name: str) -> None:
        """Adds to the base's weights what the adapter of that name adds to its outputs.

        Raises:
            ValueError: an adapter of this kind is no difference of weights.
        """
        raise ValueError(
            "Only what adds to the base's weights can be merged into them: lora and bitfit. "
            f"Received: an adapter of kind {self.kind!r}"
        )


class Adapters(Variants):
    """The adapters of an encoder.

    Args:
        encoder: Whose they are.

    Attributes:
        switch: Which one runs, by the attribute of the layers that holds it.
        version: Grows where a graph of before no longer says what is computed.
    """

    def __init__(self, encoder: Any) -> None:
        self.encoder = encoder
        self.switch = Switch()
        self.added: dict[str, Adapter] = {}
        self.version = 0

    @property
    def key(self) -> Any:
        return self.current, self.version

    @property
    def active(self) -> str | None:
        """The name of the one that runs where no context says another; None = none."""
        return _name_of(self.switch.active)

    @active.setter
    def active(self, name: str | None) -> None:
        self.switch.active = _attribute(name)

    @property
    def current(self) -> str | None:
        """The name of the one that runs here."""
        return _name_of(self.switch.current)

    def running(self, name: str | None) -> str | None:
        """The one that a task runs which keeps to that name, or to none.

        Raises:
            ValueError: It was taken out, by the encoder or another task.
        """
        if name is not None and name not in self.added:
            raise ValueError(
                "A task keeps to its adapter, which was removed or merged through its encoder or "
                "another task: kbert.edit.adapters.activate(task, None) has it follow the encoder "
                f"again. Received: a task with the adapter {name!r}, of "
                f"{', '.join(self.added) or 'none'}"
            )
        return self.current if name is None else name

    def using(self, name: str | None) -> contextlib.AbstractContextManager:
        return self.switch.using(None if name is None else _attribute(self.running(name)))

    def train(self, names: Sequence[str | None], base: bool = False) -> None:
        if any(name is not None for name in names):
            self._train(names, base)

    def _train(self, names: Sequence[str | None], base: bool = False) -> None:
        own = {id(weight) for name in names for weight in weights_of(self.encoder, name)}
        own |= {id(weight) for weight in base_weights(self.encoder)} if base else set()
        for weight in self.encoder.weights:
            if weight.trainable != (id(weight) in own):
                weight.trainable = id(weight) in own

    def record(self, name: str | None = None) -> dict[str, Any]:
        if not self.added:
            return {}
        added = {name: {"kind": x.kind, **x.to_dict()} for name, x in self.added.items()}
        return {"adapters": {"running": self.running(name), "added": added}}

    def fit_settings(self, name: str | None = None) -> dict[str, Any]:
        found = self.running(name)
        return {} if found is None else {"learning_rate": self.added[found].learning_rate}

    def refuse_config(self) -> None:
        if self.added:
            raise ValueError(
                "A config says nothing of adapters, which kbert.edit.adapters.merge and remove "
                "take out. Received: a "
                f"kbert.{type(self.encoder).__name__} with {', '.join(self.added)}"
            )


def _attribute(name: str | None) -> str | None:
    """Of the layers, which holds what an adapter has put into them: a part of weights' paths."""
    return None if name is None else f"adapter_{name}"


def _name_of(attribute: str | None) -> str | None:
    return None if attribute is None else attribute.removeprefix("adapter_")


def add(model: Any, kind: str, *, name: str | None = None, **options: Any) -> Any:
    """Adds an adapter to an encoder, which runs from now on, and freezes all other weights.

    What it begins with changes the outputs little or not at all. A head on the encoder stays as
    trainable as it is.

    Args:
        model: a `kbert.Encoder`, a `kbert.Decoder`, or a task on one. A task on texts keeps to the
            adapter that it was given, whichever of the encoder's another task or `activate`
            chooses; a `CausalLM` runs its decoder's.
        kind: "houlsby", "pfeiffer", "lora", "bitfit", "prefix" or "pal", or one that
            your own module has defined (`Adapter`).
        name: of the adapter: letters, digits and underscores; None = the kind.
        **options: of the kind, such as `rank` of "lora"; see `kbert.edit.adapters`.

    Returns:
        The model.

    Raises:
        ValueError: the kind is not known, an option is out of range, the encoder has no place for
            it, or has an adapter of that name.

    Example:
        >>> import kbert
        >>> encoder = kbert.Encoder(kbert.family("bert-tiny"))
        >>> _ = add(encoder, "lora", rank=4)
        >>> sum(weight.shape.num_elements() for weight in encoder.trainable_weights)
        4096
    """
    found: Any = registry.get("adapter", kind)
    known_options = [field.name for field in dataclasses.fields(found)]
    if unknown := sorted(set(options) - set(known_options)):
        raise ValueError(
            f"An adapter of kind {kind!r} has the options {', '.join(known_options)}. "
            f"Received: {', '.join(unknown)}"
        )
    return insert(model, found(**options), kind if name is None else name)


def insert(model: Any, adapter: Adapter, name: str) -> Any:
    """`add` of options that are made already."""
    encoder = encoder_of(model)
    if not isinstance(name, str) or not re.fullmatch(r"\w+", name):
        raise ValueError(
            "An adapter's name is of letters, digits and underscores: it is part of the names of "
            f"its weights. Received: {name!r}"
        )
    state = _state(encoder)
    if name in state.added:
        raise ValueError(
            "Adapters of one encoder must have different names. "
            f"Received: {name!r} once more; it has {', '.join(state.added)}"
        )
    if getattr(model, "compiled_by_user", False) and model.optimizer.built:
        raise ValueError(
            "An optimizer that has made updates knows the weights of then: add the adapter, and "
            f"compile the task after it. Received: a compiled {type(model).__name__}"
        )
    for edit in encoder.edits:
        if not edit.takes_adapters:
            raise ValueError(
                "Adapters are trained beside kernels that are what runs, and those of this edit "
                f"are not. Received: an encoder with the edit {edit.kind!r}"
            )
    if encoder.prefix == "decoder" and not adapter.takes_decoders:
        raise ValueError(
            "What is added to a decoder runs token by token too, as lora, houlsby, pfeiffer and "
            f"bitfit do. Received: an adapter of kind {adapter.kind!r} for a Decoder"
        )
    adapter.check_encoder(encoder)
    if adapter.pooler is None:
        adapter = adapter.replace(pooler=encoder.pooler_is_new)
    strategy = getattr(encoder, "distribute_strategy", None)
    with strategy.scope() if strategy else contextlib.nullcontext():
        kwargs = {"name": f"adapter_{name}", "dtype": encoder.dtype_policy}
        filled = list(adapter.slots(encoder, **kwargs))
        if adapter.pooler:
            filled.append(_of_pooler(encoder, **kwargs))
        for layer, made, shape in filled:
            layer.add_edit(made, shape, state.switch)
    encoder.variants = state
    state.added[name] = adapter
    activate(model, name)
    return model


@contextlib.contextmanager
def inserting(model: Any, adapter: Adapter, name: str) -> Iterator[None]:
    """`insert`, and a context that gives it weights: where they do not fit, nothing has changed."""
    encoder = encoder_of(model)
    of_task, of_encoder = getattr(model, "variant", None), _state(encoder).active
    trainable = [(weight, weight.trainable) for weight in encoder.weights]
    insert(model, adapter, name)
    try:
        yield
    except ValueError:
        remove(model, name)
        encoder.variants.active = of_encoder
        if hasattr(model, "variant"):
            model.variant = of_task
        for weight, was_trainable in trainable:
            weight.trainable = was_trainable
        raise


def enable_lora(model: Any, rank: int, **options: Any) -> Any:
    """Keras' method: `add(model, "lora", rank=rank)`."""
    return add(model, "lora", rank=rank, **options)


def parse(text: str) -> Adapter:
    """The adapter that a flag says: its kind, and after a colon its options.

    Args:
        text: such as "lora" or "lora:rank=16,targets=query+key+value", see
            `kbert.core.options.parse_kind`.

    Raises:
        ValueError: the kind is not known, or an option is out of range.

    Example:
        >>> parse("lora:rank=16,targets=query+key").targets
        ('query', 'key')
        >>> parse("houlsby").size
        64
    """
    kind, options = parse_kind(text)
    found: Any = registry.get("adapter", kind)
    try:
        return found.from_arguments(options, f"An adapter of kind {kind!r}")
    except TypeError as error:
        raise ValueError(f"{error}. Received: {text!r}") from error


def activate(model: Any, name: str | None) -> None:
    """Chooses the adapter that runs and is trained.

    Of functions that were traced before each adapter has its own: nothing is traced twice.

    Args:
        model: an encoder, or a task on one, which then keeps to it.
        name: of the adapter; None = none of them, and a task follows its encoder again. The base
            stays frozen.

    Raises:
        ValueError: there is no such adapter, or none at all.
    """
    encoder = encoder_of(model)
    if not isinstance(encoder.variants, Adapters):
        raise ValueError(f"The encoder has no adapters to choose from. Received: {name!r}")
    state = known(encoder, name)
    if not hasattr(model, "variant"):
        state.active = name
    elif model.variant != name:
        model.variant = name
        state.version += 1
    state._train([running(model)])


def using(encoder: Any, name: str | None) -> contextlib.AbstractContextManager:
    """A context in which that adapter of an encoder runs, or none.

    Raises:
        ValueError: there is no such adapter.
    """
    return known(encoder, name).using(name)


def remove(model: Any, name: str) -> None:
    """Takes an adapter out again; the base stays frozen, see `kbert.training.thaw`.

    Raises:
        ValueError: there is no such adapter.
    """
    encoder = encoder_of(model)
    state = known(encoder, name)
    for layer in encoder._flatten_layers():
        if isinstance(layer, Editable):
            layer.remove_edit(f"adapter_{name}")
    del state.added[name]
    state.version += 1
    if state.active == name:
        state.active = None
    if getattr(model, "variant", None) == name:
        model.variant = None


def merge(model: Any, name: str | None = None) -> None:
    """Makes an adapter part of the base: the same outputs, and no more to compute.

    The base stays frozen, so that `fit` goes on with the heads alone: `kbert.training.thaw(task)`
    has all of it trained again. Other tasks that keep to the adapter have to be told, by
    `activate(task, None)`.

    Args:
        model: an encoder, or a task on one.
        name: of the adapter; None = the one that runs.

    Raises:
        ValueError: there is no such adapter, it is none of weights, or the encoder has others,
            which were trained on the base as it is, or an edit that would change what is merged.
    """
    encoder = encoder_of(model)
    name = running(model) if name is None else name
    state = known(encoder, name)
    if name is None:
        raise ValueError("One adapter is merged, and none runs. Received: name=None")
    if len(state.added) > 1:
        raise ValueError(
            "Other adapters belong to the base as it is: remove them first. "
            f"Received: {', '.join(state.added)}"
        )
    if kinds := [edit.kind for edit in encoder.edits if not edit.mergeable]:
        raise ValueError(
            "An adapter that is merged would be rounded with the weights, and compute others than "
            f"before: it stays beside them. Received: an encoder with the edit {', '.join(kinds)}"
        )
    adapter = state.added[name]
    if adapter.pooler:
        slot(encoder.pooler, name).merge_into(encoder.pooler)
    adapter.merge(encoder, name)
    remove(model, name)


def restore(encoder: Any, content: Mapping[str, Any], source: str) -> None:
    """Adds the adapters that a preset describes, their weights drawn; see `Adapters.record`.

    Raises:
        ValueError: they are not understood; the message names `source`.
    """
    try:
        for name, options in content["added"].items():
            options = dict(options)
            found: Any = registry.get("adapter", options.pop("kind"))
            insert(encoder, found(**options), name)
        activate(encoder, content["running"])
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"The adapters cannot be read ({error}). Received: {source}") from error


def known(encoder: Any, name: str | None) -> Adapters:
    """The adapters of an encoder, of which that is one."""
    state = _state(encoder)
    if name is not None and name not in state.added:
        raise ValueError(
            f"An adapter is one of {', '.join(state.added) or 'none'}, which were added to the "
            f"encoder. Received: {name!r}"
        )
    return state


def _state(encoder: Any) -> Adapters:
    found = encoder.variants
    return found if isinstance(found, Adapters) else Adapters(encoder)


def running(model: Any) -> str | None:
    """The name of the adapter that a model runs.

    Raises:
        ValueError: a task keeps to one that was taken out, by its encoder or another task.
    """
    return _state(encoder_of(model)).running(getattr(model, "variant", None))


def weights_of(encoder: Any, name: str | None) -> list[keras.Variable]:
    """Those of one adapter, in the encoder's order."""
    marked = f"/adapter_{name}/"
    return [] if name is None else [x for x in encoder.weights if marked in x.path]


def base_weights(encoder: Any) -> list[keras.Variable]:
    """The encoder's without those of adapters."""
    return [weight for weight in encoder.weights if "/adapter_" not in weight.path]


def encoder_of(model: Any) -> Any:
    """The encoder or decoder of a task, or it itself.

    Raises:
        TypeError: it is none.
    """
    encoder = getattr(model, "encoder", model)
    encoder = getattr(encoder, "decoder", encoder)  # of a CausalLM, and of a DecoderEncoder
    if not isinstance(encoder, Encoder | Decoder):
        raise TypeError(
            "Adapters are added to a kbert.Encoder or a kbert.Decoder, or to a task on one. "
            f"Received: {model!r:.80}"
        )
    return encoder


def slot(layer: Editable, name: str) -> Any:
    """What an adapter has put into a layer, or None."""
    return getattr(layer, f"adapter_{name}", None)


def _of_pooler(encoder: Any, **kwargs: Any) -> Filled:
    if not hasattr(encoder.pooler, "product"):
        raise ValueError(
            "pooler=True trains the dense layer of the pooler, and the encoder has none. "
            f"Received: a kbert.{type(encoder).__name__} with pooler={encoder.pooler!r}"
        )
    pooler = encoder.pooler
    delta = DenseDelta(pooler.units, kernel=True, bias=pooler.bias is not None, **kwargs)
    return pooler, delta, (None, pooler.kernel.shape[0])
