"""Base class of adapters, and functions that add, activate, merge and remove them.

An adapter is a set of small layers in the slots of an encoder's layers (`kbert.layers.slots`).
The weights of the encoder itself, the base, are frozen. So one base can have several adapters, of
which at most one is active.
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
from kbert.edit.base import check_single
from kbert.layers.slots import Editable, Switch
from kbert.models.edits import Variants
from kbert.models.encoder import Encoder
from kbert.models.generators.decoder import Decoder

# A layer with a slot, the layer to put into it, and the shape to build that layer with.
Filled = tuple[Editable, keras.layers.Layer, Shape]


class Adapter(Registered, Options, sort="adapter"):
    """Base class of adapters: a frozen dataclass of options that defines layers for the slots.

    A subclass is registered under its `kind` when it is defined; `add` uses that name.

    Attributes:
        kind: name of the adapter kind in `add` and in folders.
        learning_rate: default peak learning rate of `fit`.
        takes_decoders: whether it computes the same token by token with a KV cache as on a whole
            sequence, so that decoders support it.
    """

    learning_rate: ClassVar[float] = 1e-3
    takes_decoders: ClassVar[bool] = True

    pooler: bool | None = option(
        None,
        help="Whether the dense layer of the pooler is trained too; none = only if it was newly "
        "initialised with a task's head.",
    )

    def check_encoder(self, encoder: Any) -> None:
        """Raises ValueError if the encoder does not support the adapter."""

    def slots(self, encoder: Any, **kwargs: Any) -> Iterator[Filled]:
        """Yields the slots of the adapter and their layers, in the encoder's order.

        Args:
            encoder: a built encoder or decoder.
            **kwargs: `name` and `dtype` of the layers.
        """
        raise NotImplementedError

    def merge(self, encoder: Any, name: str) -> None:
        """Merges the adapter `name` into the base's weights.

        Raises:
            ValueError: an adapter of this kind is not a sum with the base's weights.
        """
        raise ValueError(
            "Only adapters that add to the base's weights can be merged: lora and bitfit. "
            f"Received: an adapter of kind {self.kind!r}"
        )


class Adapters(Variants):
    """The adapters of an encoder.

    Args:
        encoder: Encoder or decoder with the adapters.

    Attributes:
        switch: Switch that names the active adapter, by its attribute in the layers.
        added: Name -> adapter.
        version: Number that increases when graphs that were traced before become invalid.
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
        """The name of the active adapter outside of `using` contexts; None = none."""
        return _name_of(self.switch.active)

    @active.setter
    def active(self, name: str | None) -> None:
        self.switch.active = _attribute(name)

    @property
    def current(self) -> str | None:
        """The name of the active adapter in this context; None = none."""
        return _name_of(self.switch.current)

    def running(self, name: str | None) -> str | None:
        """Returns the adapter that a task runs: `name`, or for None the encoder's active one.

        Raises:
            ValueError: The adapter was removed or merged through the encoder or another task.
        """
        if name is not None and name not in self.added:
            raise ValueError(
                "The task's adapter was removed or merged through the encoder or another task; "
                "kbert.edit.adapters.activate(task, None) lets the task follow the encoder again. "
                f"Received: a task with the adapter {name!r}, an encoder with the adapters "
                f"{', '.join(self.added) or 'none'}"
            )
        return self.current if name is None else name

    def using(self, name: str | None) -> contextlib.AbstractContextManager:
        return self.switch.using(None if name is None else _attribute(self.running(name)))

    def train(self, names: Sequence[str | None], base: bool = False) -> None:
        if any(name is not None for name in names):
            self._train(names, base)

    def _train(self, names: Sequence[str | None], base: bool = False) -> None:
        """Makes the weights of some adapters trainable, and freezes all others of the encoder.

        Args:
            names: names of the adapters; None stands for none.
            base: whether the encoder's own weights are trainable too.
        """
        trainable_ids = {id(weight) for name in names for weight in weights_of(self.encoder, name)}
        trainable_ids |= {id(weight) for weight in base_weights(self.encoder)} if base else set()
        for weight in self.encoder.weights:
            if weight.trainable != (id(weight) in trainable_ids):
                weight.trainable = id(weight) in trainable_ids

    def record(self, name: str | None = None) -> dict[str, Any]:
        if not self.added:
            return {}
        added = {
            name: {"kind": adapter.kind, **adapter.to_dict()}
            for name, adapter in self.added.items()
        }
        return {"adapters": {"running": self.running(name), "added": added}}

    def fit_settings(self, name: str | None = None) -> dict[str, Any]:
        running_name = self.running(name)
        return (
            {}
            if running_name is None
            else {"learning_rate": self.added[running_name].learning_rate}
        )

    def refuse_config(self) -> None:
        if self.added:
            raise ValueError(
                "Configs do not include adapters: use kbert.edit.adapters.merge or remove first. "
                f"Received: a kbert.{type(self.encoder).__name__} with {', '.join(self.added)}"
            )


def _attribute(name: str | None) -> str | None:
    """Returns the layers' attribute for an adapter; it is also a part of its weights' paths."""
    return None if name is None else f"adapter_{name}"


def _name_of(attribute: str | None) -> str | None:
    return None if attribute is None else attribute.removeprefix("adapter_")


def add(model: Any, kind: str, *, name: str | None = None, **options: Any) -> Any:
    """Adds an adapter to an encoder, activates it, and freezes the encoder's other weights.

    Its initial weights change the outputs little or not at all. Heads of a task remain trainable
    or frozen, as they were.

    Args:
        model: a `kbert.Encoder`, a `kbert.Decoder`, or a task on one. A task with an encoder keeps
            its own adapter, even if another task or `activate` chooses another one for the encoder.
            A `CausalLM` uses the active adapter of its decoder.
        kind: "houlsby", "pfeiffer", "lora", "bitfit", "prefix" or "pal", or the kind of an
            `Adapter` that your own module defines.
        name: name of the adapter: ASCII letters, digits and underscores; None = the kind.
        **options: options of the kind, such as `rank` of "lora"; see `kbert.edit.adapters`.

    Returns:
        The model.

    Raises:
        ValueError: the kind is unknown, an option is out of range, the encoder does not support the
            adapter or has one of that name, or the task's optimizer is built already.

    Example:
        >>> import kbert
        >>> encoder = kbert.Encoder(kbert.family("bert-tiny"))
        >>> _ = add(encoder, "lora", rank=4)
        >>> sum(weight.shape.num_elements() for weight in encoder.trainable_weights)
        4096
    """
    adapter_class: Any = registry.get("adapter", kind)
    known_options = [field.name for field in dataclasses.fields(adapter_class)]
    if unknown_options := sorted(set(options) - set(known_options)):
        raise ValueError(
            f"An adapter of kind {kind!r} has the options {', '.join(known_options)}. "
            f"Received: {', '.join(unknown_options)}"
        )
    return insert(model, adapter_class(**options), kind if name is None else name)


def insert(model: Any, adapter: Adapter, name: str) -> Any:
    """Adds an adapter that is given as an `Adapter` object; see `add`.

    `model` is an encoder, a decoder or a task on one; it is returned. `name` is the adapter's name.

    Raises:
        ValueError: the encoder does not support the adapter or has one of that name; the name is
            not made of ASCII letters, digits and underscores; or the task's optimizer is built
            already.
    """
    encoder = encoder_of(model)
    if not isinstance(name, str) or not re.fullmatch(r"\w+", name, re.ASCII):
        raise ValueError(
            "The name of an adapter must consist of ASCII letters, digits and underscores (it is "
            f"part of the names of its weights). Received: {name!r}"
        )
    state = _state(encoder)
    if name in state.added:
        raise ValueError(
            f"The adapters of an encoder must have unique names. Received: {name!r} again; it has "
            f"{', '.join(state.added)}"
        )
    if getattr(model, "compiled_by_user", False) and model.optimizer.built:
        raise ValueError(
            "An adapter must be added before the task's optimizer is built: add the adapter, then "
            f"compile the task. Received: a compiled {type(model).__name__}"
        )
    for edit in encoder.edits:
        if not edit.takes_adapters:
            raise ValueError(
                "Adapters are not supported with this edit, which changes the kernels that they "
                f"would be trained with. Received: an encoder with the edit {edit.kind!r}"
            )
    if encoder.prefix == "decoder" and not adapter.takes_decoders:
        raise ValueError(
            "A decoder supports only adapters that also run token by token, such as lora, "
            f"houlsby, pfeiffer and bitfit. Received: an adapter of kind {adapter.kind!r} for a "
            "Decoder"
        )
    adapter.check_encoder(encoder)
    if adapter.pooler is None:
        adapter = adapter.replace(pooler=encoder.pooler_is_new)
    strategy = getattr(encoder, "distribute_strategy", None)
    with strategy.scope() if strategy else contextlib.nullcontext():
        kwargs = {"name": f"adapter_{name}", "dtype": encoder.dtype_policy}
        filled_slots = list(adapter.slots(encoder, **kwargs))
        if adapter.pooler:
            filled_slots.append(_of_pooler(encoder, **kwargs))
        for layer, adapter_layer, shape in filled_slots:
            layer.add_edit(adapter_layer, shape, state.switch)
    encoder.variants = state
    state.added[name] = adapter
    activate(model, name)
    return model


@contextlib.contextmanager
def inserting(model: Any, adapter: Adapter, name: str) -> Iterator[None]:
    """Inserts an adapter, see `insert`; if the context raises, undoes it.

    In the context, the caller loads the adapter's weights. The active adapter and
    the trainable weights are then the same as before.
    """
    encoder = encoder_of(model)
    task_adapter, encoder_adapter = getattr(model, "variant", None), _state(encoder).active
    trainable = [(weight, weight.trainable) for weight in encoder.weights]
    insert(model, adapter, name)
    try:
        yield
    except BaseException:
        remove(model, name)
        encoder.variants.active = encoder_adapter
        if hasattr(model, "variant"):
            model.variant = task_adapter
        for weight, was_trainable in trainable:
            weight.trainable = was_trainable
        raise


def enable_lora(model: Any, rank: int, **options: Any) -> Any:
    """Adds a LoRA adapter under Keras' method name: `add(model, "lora", rank=rank)`."""
    return add(model, "lora", rank=rank, **options)


def parse(text: str) -> Adapter:
    """Returns the adapter that a flag describes: a kind, and after a colon its options.

    Args:
        text: text of the flag, such as "lora" or "lora:rank=16,targets=query+key+value"; see
            `kbert.core.options.parse_kind`.

    Raises:
        ValueError: the kind or an option is unknown, or an option is out of range.

    Example:
        >>> parse("lora:rank=16,targets=query+key").targets
        ('query', 'key')
        >>> parse("houlsby").size
        64
    """
    kind, options = parse_kind(text)
    adapter_class: Any = registry.get("adapter", kind)
    try:
        return adapter_class.from_arguments(options, f"An adapter of kind {kind!r}")
    except TypeError as error:
        raise ValueError(f"{error}. Received: {text!r}") from error


def activate(model: Any, name: str | None) -> None:
    """Activates an adapter: it runs and is trained.

    An encoder's traced functions are kept per adapter: switching back to one does not retrace.

    Args:
        model: an encoder, or a task on one. A task keeps this adapter whatever its encoder does.
        name: name of the adapter; None = no adapter on an encoder; a task follows its encoder
            again. The base stays frozen.

    Raises:
        ValueError: there is no such adapter, or none at all.
    """
    encoder = encoder_of(model)
    if not isinstance(encoder.variants, Adapters):
        raise ValueError(f"The encoder has no adapters that could be activated. Received: {name!r}")
    state = known(encoder, name)
    if not hasattr(model, "variant"):
        state.active = name
    elif model.variant != name:
        model.variant = name
        state.version += 1
    state._train([running(model)])


def using(encoder: Any, name: str | None) -> contextlib.AbstractContextManager:
    """Returns a context in which the adapter `name` of an encoder is active; None = none.

    Raises:
        ValueError: there is no such adapter.
    """
    return known(encoder, name).using(name)


def remove(model: Any, name: str) -> None:
    """Removes an adapter; the base stays frozen, see `kbert.training.thaw`.

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
    """Merges an adapter into the base: the same outputs without the adapter's compute.

    The base stays frozen, so that `fit` trains only the heads; `kbert.training.thaw(task)` makes
    all weights trainable again. Call `activate(task, None)` for other tasks with this adapter.

    Args:
        model: an encoder, or a task on one.
        name: name of the adapter; None = the active one.

    Raises:
        ValueError: there is no such adapter, or its kind cannot be merged; or the encoder has other
            adapters, which were trained on the current base, or an edit that would change the
            merged weights.
    """
    encoder = encoder_of(model)
    name = running(model) if name is None else name
    state = known(encoder, name)
    if name is None:
        raise ValueError(
            "Pass the `name` of the adapter to merge, as none is active. Received: name=None"
        )
    if len(state.added) > 1:
        raise ValueError(
            "Other adapters were trained on the current weights: remove them before merging one. "
            f"Received: {', '.join(state.added)}"
        )
    if kinds := [edit.kind for edit in encoder.edits if not edit.mergeable]:
        raise ValueError(
            "An adapter cannot be merged with this edit: its sum with the weights would be "
            "rounded, which changes the outputs. Received: an encoder with the edit "
            f"{', '.join(kinds)}"
        )
    adapter = state.added[name]
    if adapter.pooler:
        slot(encoder.pooler, name).merge_into(encoder.pooler)
    adapter.merge(encoder, name)
    remove(model, name)


def restore(encoder: Any, content: Mapping[str, Any], source: str) -> None:
    """Adds the adapters that a preset describes, newly initialised.

    Args:
        encoder: encoder or decoder without adapters.
        content: the description: "added", name -> kind and options of an adapter, and "running",
            the name of the active one or None; see `Adapters.record`.
        source: where it was read, for the message.

    Raises:
        ValueError: the description is invalid, or the encoder does not support an adapter.
    """
    try:
        for name, options in content["added"].items():
            options = dict(options)
            adapter_class: Any = registry.get("adapter", options.pop("kind"))
            insert(encoder, adapter_class(**options), name)
        activate(encoder, content["running"])
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"The adapters cannot be read ({error}). Received: {source}") from error


def known(encoder: Any, name: str | None) -> Adapters:
    """Returns the `Adapters` of an encoder; for one that has none yet, an empty object.

    Raises:
        ValueError: `name` is neither None nor the name of one of the adapters.
    """
    state = _state(encoder)
    if name is not None and name not in state.added:
        raise ValueError(
            "`name` must be an adapter of the encoder, which has "
            f"{', '.join(state.added) or 'none'}. Received: {name!r}"
        )
    return state


def _state(encoder: Any) -> Adapters:
    variants = encoder.variants
    return variants if isinstance(variants, Adapters) else Adapters(encoder)


def running(model: Any) -> str | None:
    """Returns the name of the active adapter of a model, or None.

    Raises:
        ValueError: a task's adapter was removed or merged through its encoder or another task.
    """
    return _state(encoder_of(model)).running(getattr(model, "variant", None))


def weights_of(encoder: Any, name: str | None) -> list[keras.Variable]:
    """Returns the weights of the adapter `name`, in the encoder's order; none for None."""
    marker = f"/adapter_{name}/"
    return [] if name is None else [weight for weight in encoder.weights if marker in weight.path]


def base_weights(encoder: Any) -> list[keras.Variable]:
    """Returns the encoder's weights without those of adapters."""
    return [weight for weight in encoder.weights if "/adapter_" not in weight.path]


def encoder_of(model: Any) -> Any:
    """Returns the encoder or decoder of a task, or the model itself if it is one.

    Raises:
        TypeError: the model is neither.
        ValueError: the model is an ensemble.
    """
    check_single(model)
    encoder = getattr(model, "encoder", model)
    encoder = getattr(encoder, "decoder", encoder)  # for a CausalLM and a DecoderEncoder
    if not isinstance(encoder, Encoder | Decoder):
        raise TypeError(
            "The model must be a kbert.Encoder, a kbert.Decoder or a task on one. Received: "
            f"{model!r:.80}"
        )
    return encoder


def slot(layer: Editable, name: str) -> Any:
    """Returns the layer that the adapter `name` has put into the slot of `layer`, or None."""
    return getattr(layer, f"adapter_{name}", None)


def _of_pooler(encoder: Any, **kwargs: Any) -> Filled:
    """Returns the pooler, the layer that trains differences to it, and that layer's input shape.

    `kwargs` are `name` and `dtype` of the new layer.

    Raises:
        ValueError: the encoder has no pooler, or one without a dense layer.
    """
    if not hasattr(encoder.pooler, "product"):
        raise ValueError(
            "pooler=True requires an encoder whose pooler has a dense layer. Received: a "
            f"kbert.{type(encoder).__name__} with pooler={encoder.pooler!r}"
        )
    pooler = encoder.pooler
    delta = DenseDelta(pooler.units, kernel=True, bias=pooler.bias is not None, **kwargs)
    return pooler, delta, (None, pooler.kernel.shape[0])
