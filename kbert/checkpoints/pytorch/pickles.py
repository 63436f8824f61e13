"""Reads pickles of weights without executing them; tensors become inert descriptions.

A pickle is a program for a stack machine, and Python's unpickler looks up and calls whatever the
program names. The machine here has only the opcodes that occur in files of weights, and calls
nothing. A name is text, and a call of one of a few known names becomes a description. Everything
else raises an error that names it, before anything after it is read.

(Python's pickletools documents the opcodes; torch/_utils.py and torch/serialization.py have the
calls and the persistent ids that tensors are written as.)
"""

import dataclasses
import io
import pickletools
import struct
from collections.abc import Callable
from typing import Any, ClassVar

# A pickle of 400 tensors has 20 kB and 10,000 opcodes; one of a training run, a hundred times that.
_MOST_BYTES = 1 << 24
_MOST_OPCODES = 1 << 20
_MOST_AXES = 32
_LARGEST = 1 << 63  # limit of sizes and offsets
_SHOWN = 80

# Name of a storage class -> dtype of its elements, as in `torch.<dtype>`.
STORAGES = {
    "torch.FloatStorage": "float32",
    "torch.DoubleStorage": "float64",
    "torch.HalfStorage": "float16",
    "torch.BFloat16Storage": "bfloat16",
    "torch.LongStorage": "int64",
    "torch.IntStorage": "int32",
    "torch.ShortStorage": "int16",
    "torch.CharStorage": "int8",
    "torch.ByteStorage": "uint8",
    "torch.BoolStorage": "bool",
    "torch.ComplexFloatStorage": "complex64",
    "torch.ComplexDoubleStorage": "complex128",
    "torch.storage.UntypedStorage": "uint8",  # bytes: the tensor has the dtype
}
_TYPES = ("uint16", "uint32", "uint64")  # dtypes without a storage class
_OF_CUDA = "torch.cuda."  # in old files, the storages of a GPU


@dataclasses.dataclass(frozen=True)
class Global:
    """A name in the pickle, which is never looked up."""

    name: str


@dataclasses.dataclass
class Record:
    """An object of a class that is known to contain only settings.

    Attributes:
        name: name of the class.
        state: attributes of the object.
    """

    name: str
    state: Any = None


@dataclasses.dataclass(frozen=True)
class Storage:
    """A storage: the elements that tensors are views of.

    Attributes:
        key: key of the storage in the file.
        dtype: dtype of the elements.
        length: number of elements of the whole storage.
        start: index of the first element, if this is a part of a storage; else 0.
        part: number of elements of the part; None = the whole storage.
    """

    key: str
    dtype: str
    length: int
    start: int = 0
    part: int | None = None


@dataclasses.dataclass(frozen=True)
class Tensor:
    """A view of a storage; offset and strides count elements of `dtype`."""

    storage: Storage
    dtype: str
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Pickle:
    """Result of `read_pickle`.

    Attributes:
        value: value of the pickle, built of plain values, `Tensor`s and `Record`s. Containers may
            contain themselves.
        length: length of the pickle in bytes.
        storages: key -> storage, for all keys in the pickle; for a key with parts, one of them.
    """

    value: Any
    length: int
    storages: dict[str, Storage]


def read_pickle(content: bytes, source: str, start: int = 0) -> Pickle:
    """Reads the value of a pickle of weights without executing it.

    Args:
        content: bytes that begin with the pickle; whatever follows it is ignored.
        source: where the pickle is from, for messages.
        start: offset of `content` in the source, for messages.

    Raises:
        ValueError: the pickle has a name or an opcode that does not occur in files of weights, or
            is damaged, truncated or too long.

    Example:
        >>> import pickle
        >>> read_pickle(pickle.dumps({"epoch": 3}, protocol=2), "memory").value
        {'epoch': 3}
        >>> read_pickle(pickle.dumps(print, protocol=2), "memory")
        Traceback (most recent call last):
        ...
        ValueError: A file of weights must name only tensors, their storages and plain containers: \
nothing else is looked up, let alone called. Received: __builtin__.print at byte 2 of memory
    """
    return _Machine(source, start).run(content)


def shown(value: object) -> str:
    """Formats a value of a file for a message: plain values themselves, others by their type.

    Example:
        >>> shown("a name"), shown([])
        ("'a name'", 'a list')
    """
    if isinstance(value, str):
        return repr(value if len(value) <= _SHOWN else f"{value[:_SHOWN]}…")
    if type(value) in (int, float, bool, type(None)):
        return repr(value)
    return f"a {type(value).__name__}"


class _Machine:
    """A stack machine: stack and memo, and the effect of each opcode on them.

    Args:
        source: where the pickle is from, for messages.
        start: offset of the pickle in the source, for messages.
    """

    def __init__(self, source: str, start: int) -> None:
        self._source, self._start = source, start
        self._place = 0
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}
        self._storages: dict[str, Storage] = {}

    def run(self, content: bytes) -> Pickle:
        """Executes the opcodes of a pickle until STOP; results and errors are `read_pickle`'s."""
        stream = io.BytesIO(content[:_MOST_BYTES])
        opcodes = pickletools.genops(stream)
        for _ in range(_MOST_OPCODES):
            try:
                opcode, argument, position = next(opcodes)
            except (ValueError, struct.error, OverflowError, StopIteration) as error:
                self._place = min(stream.tell(), len(content))
                long = " or longer than those of weights" if len(content) > _MOST_BYTES else ""
                raise self._damaged(f"{' '.join(str(error).split())[:_SHOWN]}{long}") from error
            self._place = position or 0
            if opcode.name == "STOP":
                if self._marks or len(self._stack) != 1:
                    raise self._damaged("it ends with more or less than one value")
                return Pickle(self._stack[0], self._place + 1, self._storages)
            apply = self._OPCODES.get(opcode.name)
            if apply is None:
                raise ValueError(
                    "A pickle of weights must have only opcodes for tensors and plain containers. "
                    f"Received: {opcode.name} {self._at()}"
                )
            apply(self, argument)
        raise self._damaged("more opcodes than any file of weights has")

    def _at(self) -> str:
        return f"at byte {self._start + self._place:,} of {self._source}"

    def _damaged(self, reason: str) -> ValueError:
        return ValueError(
            f"The pickle is damaged, truncated or not one of weights ({reason}). Received: "
            f"{self._at().removeprefix('at ')}"
        )

    def _expect(self, value: Any, kind: type | tuple[type, ...], what: str) -> Any:
        if not isinstance(value, kind):
            raise self._damaged(f"{what} is {shown(value)}")
        return value

    # The stack.

    def _push(self, value: Any) -> None:
        self._stack.append(value)

    def _bottom(self) -> int:
        return self._marks[-1] if self._marks else 0

    def _pop(self) -> Any:
        if len(self._stack) <= self._bottom():
            raise self._damaged("a value is missing")
        return self._stack.pop()

    def _top(self) -> Any:
        if len(self._stack) <= self._bottom():
            raise self._damaged("a value is missing")
        return self._stack[-1]

    def _above_mark(self) -> list[Any]:
        """Removes the last mark and the values above it from the stack; returns the values."""
        if not self._marks:
            raise self._damaged("a mark is missing")
        mark = self._marks.pop()
        values = self._stack[mark:]
        del self._stack[mark:]
        return values

    def _mark(self, _: Any) -> None:
        self._marks.append(len(self._stack))

    def _nothing(self, _: Any) -> None:
        """Skips a frame or the protocol, which do not affect the value."""

    def _integer(self, value: int) -> None:
        # Small enough to add and print quickly; the magic number of old files has 80 bits.
        if value.bit_length() > 128:
            raise self._damaged("an integer of more than 128 bits")
        self._push(value)

    def _old_text(self, value: str) -> None:
        """Pushes a string of Python 2, decoded as UTF-8 like in torch.load."""
        try:
            self._push(value.encode("latin-1").decode("utf-8"))
        except UnicodeError:
            raise self._damaged("a text that is not UTF-8") from None

    def _tuple(self, count: int) -> None:
        values = [self._pop() for _ in range(count)]
        self._push(tuple(reversed(values)))

    # The memo.

    def _put(self, index: int) -> None:
        self._memo[index] = self._top()

    def _memoize(self, _: Any) -> None:
        self._put(len(self._memo))

    def _get(self, index: int) -> None:
        if index not in self._memo:
            raise self._damaged(f"value {index}, to be repeated, is missing")
        self._push(self._memo[index])

    # Containers.

    def _append(self, _: Any) -> None:
        value = self._pop()
        self._expect(self._top(), list, "what is appended to").append(value)

    def _appends(self, _: Any) -> None:
        values = self._above_mark()
        self._expect(self._top(), list, "what is appended to").extend(values)

    def _set_item(self, _: Any) -> None:
        value, key = self._pop(), self._pop()
        self._fill(self._top(), [key, value])

    def _set_items(self, _: Any) -> None:
        values = self._above_mark()
        self._fill(self._top(), values)

    def _fill(self, table: Any, values: list[Any]) -> dict[Any, Any]:
        """Adds items to a dict of the pickle and returns the dict.

        Raises ValueError if `table` is no dict, or a key is not a plain value.

        Args:
            table: the dict; changed in place.
            values: keys and values in turn.
        """
        self._expect(table, dict, "what gets items")
        if len(values) % 2:
            raise self._damaged("a key without a value")
        for key, value in zip(values[::2], values[1::2], strict=True):
            # Other keys could be nested as deeply as the file is long, and hashing would recurse.
            if type(key) not in (str, int, float, bool, type(None)):
                raise self._damaged(f"the key of a dict is {shown(key)}")
            table[key] = value
        return table

    # Names and calls.

    def _global(self, argument: str) -> None:
        # pickletools joins the two lines by a space.
        self._named(argument.replace(" ", ".", 1))

    def _stack_global(self, _: Any) -> None:
        name, module = self._pop(), self._pop()
        for part in (name, module):
            self._expect(part, str, "a part of a name")
        self._named(f"{module}.{name}")

    def _named(self, name: str) -> None:
        """Pushes a name as a `Global`; raises ValueError for a name unknown in files of weights."""
        if name.startswith(_OF_CUDA) and name.endswith("Storage"):
            name = f"torch.{name.removeprefix(_OF_CUDA)}"
        types = (f"torch.{kind}" for kind in (*STORAGES.values(), *_TYPES))
        if name not in self._CALLS and name not in STORAGES and name not in types:
            raise ValueError(
                "A file of weights must name only tensors, their storages and plain containers: "
                f"nothing else is looked up, let alone called. Received: {shown(name)[1:-1]} "
                f"{self._at()}"
            )
        self._push(Global(name))

    def _reduce(self, _: Any) -> None:
        arguments = self._expect(self._pop(), tuple, "the arguments of a call")
        self._call(self._pop(), arguments)

    def _call(self, function: Any, arguments: tuple) -> None:
        """Pushes the description of a call; raises ValueError unless the function is in `_CALLS`.

        Args:
            function: value that is called, a `Global`.
            arguments: arguments of the call.
        """
        name = self._expect(function, Global, "what is called").name
        method, counts = self._CALLS.get(name, (None, ()))
        if method is None:
            raise self._damaged(f"a call of {name}")
        if len(arguments) not in counts:
            raise self._damaged(f"{name} with {len(arguments)} arguments")
        self._push(method(self, name, *arguments))

    def _build(self, _: Any) -> None:
        """Sets the attributes of the record on top of the stack; those of a dict are dropped."""
        state = self._pop()
        target = self._expect(self._top(), (dict, Record), "what gets attributes")
        # A dict of weights has versions of layers (`_metadata`), which do not affect the weights.
        if isinstance(target, Record):
            target.state = state

    def _dict(self, _: str, pairs: Any = ()) -> dict[Any, Any]:
        """Returns the dict of a call of OrderedDict with a list of (key, value)."""
        table: dict[Any, Any] = {}
        for pair in self._expect(pairs, (list, tuple), "the content of a dict"):
            if not isinstance(pair, list | tuple) or len(pair) != 2:
                raise self._damaged("the content of a dict is not pairs")
            self._fill(table, list(pair))
        return table

    def _record(self, name: str, *_: Any) -> Record:
        return Record(name)

    def _size(self, _: str, sizes: Any) -> tuple:
        return self._expect(sizes, tuple, "a shape")

    def _parameter(self, _: str, tensor: Any, *others: Any) -> Tensor:
        return self._expect(tensor, Tensor, "a parameter's data")

    def _tensor(
        self, name: str, storage: Any, offset: Any, shape: Any, strides: Any, *others: Any
    ) -> Tensor:
        """Returns the description of a tensor; raises ValueError for an invalid one.

        Args:
            name: name of the function in PyTorch that is called.
            storage: `Storage` with the elements.
            offset: index of the first element.
            shape: sizes of the axes.
            strides: elements between neighbours along each axis.
            *others: requires_grad, hooks, the dtype (only if `name` ends with "_v3") and flags of
                the view.
        """
        self._expect(storage, Storage, "a tensor's storage")
        dtype, extra = storage.dtype, others[2:]
        if name.endswith("_v3"):
            dtype, extra = self._type(others[2]), others[3:]
        if extra and extra[0]:
            raise self._damaged("a tensor that is a conjugated or negated view")
        for sizes in (shape, strides):
            self._expect(sizes, tuple, "a tensor's shape or strides")
            if len(sizes) > _MOST_AXES:
                raise self._damaged(f"a tensor of more than {_MOST_AXES} axes")
        if len(shape) != len(strides):
            raise self._damaged("a tensor's shape and strides have different lengths")
        for value in (offset, *shape, *strides):
            # A bool is an int to Python.
            if type(value) is not int or not 0 <= value < _LARGEST:
                raise self._damaged("a tensor's offset, shape or strides are not sizes")
        return Tensor(storage, dtype, offset, shape, strides)

    def _type(self, value: Any) -> str:
        name = self._expect(value, Global, "a tensor's type").name.removeprefix("torch.")
        if name not in (*STORAGES.values(), *_TYPES):
            raise self._damaged(f"a tensor's type is {name}")
        return name

    def _persistent(self, _: Any) -> None:
        """Pushes the storage of a persistent id.

        The id is ("storage", class, key, device, length). In old files a sixth element describes a
        part of the storage, or is None.
        """
        description = self._expect(self._pop(), tuple, "a storage's description")
        if len(description) not in (5, 6) or description[0] != "storage":
            raise self._damaged("a persistent id that is not a storage's")
        _, kind, key, _, length, *views = description
        name = self._expect(kind, Global, "a storage's class").name
        if name not in STORAGES:
            raise self._damaged(f"a storage's class is {name}")
        self._expect(key, str, "a storage's key")
        start, part = 0, None
        if views and views[0] is not None:
            view = self._expect(views[0], tuple, "a part of a storage")
            if len(view) != 3:
                raise self._damaged("a part of a storage is not a key, start and length")
            _, start, part = view
        for value in (length, start, 0 if part is None else part):
            if type(value) is not int or not 0 <= value < _LARGEST:
                raise self._damaged("a storage's lengths are not sizes")
        storage = Storage(key, STORAGES[name], length, start, part)
        first = self._storages.setdefault(key, storage)
        if (first.dtype, first.length) != (storage.dtype, length):
            raise self._damaged(f"storage {shown(key)} has two types or lengths")
        self._push(storage)

    # Name -> method that describes a call of it, and the possible numbers of arguments.
    _CALLS: ClassVar[dict[str, tuple[Callable[..., Any], tuple[int, ...]]]] = {
        "collections.OrderedDict": (_dict, (0, 1)),
        "torch._utils._rebuild_tensor": (_tensor, (4,)),
        "torch._utils._rebuild_tensor_v2": (_tensor, (6, 7)),
        "torch._utils._rebuild_tensor_v3": (_tensor, (7, 8)),
        "torch._utils._rebuild_parameter": (_parameter, (3,)),
        "torch._utils._rebuild_parameter_with_state": (_parameter, (4,)),
        "torch.Size": (_size, (1,)),
        "torch.device": (_record, (1, 2)),
        "argparse.Namespace": (_record, (0,)),
    }
    _OPCODES: ClassVar[dict[str, Callable[["_Machine", Any], None]]] = {
        **dict.fromkeys(("PROTO", "FRAME"), _nothing),
        **dict.fromkeys(("BININT", "BININT1", "BININT2", "LONG1"), _integer),
        **dict.fromkeys(
            ("BINFLOAT", "BINUNICODE", "SHORT_BINUNICODE", "BINBYTES", "SHORT_BINBYTES"), _push
        ),
        **dict.fromkeys(("BINSTRING", "SHORT_BINSTRING"), _old_text),
        "NONE": lambda self, _: self._push(None),
        "NEWTRUE": lambda self, _: self._push(True),
        "NEWFALSE": lambda self, _: self._push(False),
        "MARK": _mark,
        "EMPTY_TUPLE": lambda self, _: self._push(()),
        "TUPLE": lambda self, _: self._push(tuple(self._above_mark())),
        "TUPLE1": lambda self, _: self._tuple(1),
        "TUPLE2": lambda self, _: self._tuple(2),
        "TUPLE3": lambda self, _: self._tuple(3),
        "EMPTY_LIST": lambda self, _: self._push([]),
        "LIST": lambda self, _: self._push(self._above_mark()),
        "APPEND": _append,
        "APPENDS": _appends,
        "EMPTY_DICT": lambda self, _: self._push({}),
        "DICT": lambda self, _: self._push(self._fill({}, self._above_mark())),
        "SETITEM": _set_item,
        "SETITEMS": _set_items,
        **dict.fromkeys(("BINPUT", "LONG_BINPUT"), _put),
        "MEMOIZE": _memoize,
        **dict.fromkeys(("BINGET", "LONG_BINGET"), _get),
        "GLOBAL": _global,
        "STACK_GLOBAL": _stack_global,
        **dict.fromkeys(("REDUCE", "NEWOBJ"), _reduce),
        "BUILD": _build,
        "BINPERSID": _persistent,
    }
