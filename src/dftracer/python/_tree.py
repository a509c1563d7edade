"""`ai`: one vocabulary of annotations for everything a training job does."""

from __future__ import annotations

from dftracer import _core, _session

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, ClassVar, Self, TypeVar

    _Source = TypeVar("_Source")

# The parts that event names are made of.
BLOCK_NAME = "block"
ITER_NAME = "iter"
INIT_NAME = "init"
ITER_COUNT_NAME = "count"
CTX_SEPARATOR = "."
ROOT_NAME = "ai_root"
ROOT_CAT = "ai_root"
START_METADATA_NAME = "start"
STOP_METADATA_NAME = "end"

# Marks in the path of a node: outside the tree (a plain one, one for storage, one with its own children);
# made by derive(); an event of a loop. Others are attributes.
_STANDALONE, _STORAGE, _BRANCH, _DERIVED, _LOOP = "\0", "\3", "\4", "\1", "\2"


def get_iter_block_name(name: str) -> str:
    """The name of the event of a loop's body."""
    suffix = f"{CTX_SEPARATOR}{BLOCK_NAME}"
    return name if name.endswith(suffix) else name + suffix


def get_iter_handle_name(name: str) -> str:
    """The name of the event of waiting for a loop's next item."""
    suffix = f"{CTX_SEPARATOR}{ITER_NAME}"
    return name if name.endswith(suffix) else name + suffix


class _NodeKind(type):
    """What calling a node returns is also an instance of the node's class, for `isinstance` checks."""

    def __instancecheck__(cls, instance: Any) -> bool:
        if type(instance) is _core.NodeUse:
            instance = instance.node
        return super().__instancecheck__(instance)


class DFTracerAI(_core.Node, metaclass=_NodeKind):
    """A named span with a place in a tree: decorator, context manager, loop wrapper, start/stop pair."""

    def __init__(
        self,
        *,
        cat: str,
        name: str | None = None,
        epoch: Any = None,
        step: Any = None,
        image_idx: Any = None,
        image_size: Any = None,
        enable: bool = True,
    ) -> None:
        label = name or cat
        self._place(label, cat, None, (_STANDALONE, cat, label))
        self.update(epoch, step, image_idx, image_size)
        if not enable:
            self.set_enabled(False)

    def _place(self, name: str, cat: str, parent: DFTracerAI | None, path: tuple[str, ...]) -> None:
        super().__init__(name, cat, parent)
        self._derived: dict[str, DFTracerAI] = {}
        self._path = path

    def _child(self, name: str, step: str) -> DFTracerAI:
        child = DFTracerAI.__new__(DFTracerAI)
        child._place(name, self.cat, self, (*self._path, step))
        return child

    def derive(self, name: str) -> DFTracerAI:
        """The child `<this name>.<name>`; the same object each time."""
        child = self._derived.get(name)
        if child is None:
            child = self._child(f"{self.name}{CTX_SEPARATOR}{name}", _DERIVED + name)
            child = self._derived.setdefault(name, child)  # another thread may have been first
        return child

    @property
    def init(self) -> DFTracerAI:
        """The event for initialising this."""
        return self.derive(INIT_NAME)

    def create_children(self, names: Mapping[str, str]) -> None:
        """Add children as attributes: attribute name to event name."""
        for attribute, name in names.items():
            setattr(self, attribute, self._child(name, attribute))

    def iter(
        self,
        iterator: _Source,
        include_block: bool = True,
        include_iter: bool = True,
        iter_name: str | None = None,
        block_name: str | None = None,
    ) -> _Source:
        """Loop over `iterator`: one event for waiting for each item, one for the body that uses it.

        What it returns behaves as `iterator` does: a loader can be iterated again and has its length and
        attributes, an iterator stays one.
        """
        return self._iter_as(None, iterator, include_block, include_iter, iter_name, block_name)

    def _iter_as(
        self,
        use: _core.NodeUse | None,
        iterator: _Source,
        include_block: bool = True,
        include_iter: bool = True,
        iter_name: str | None = None,
        block_name: str | None = None,
    ) -> _Source:
        from dftracer.python._iterables import looped  # noqa: PLC0415 - needed only for loops

        if not _session.SETTINGS.enable:
            later = (use, include_block, include_iter, iter_name, block_name)
            return looped(iterator, None, lambda: self._spec(*later))
        return looped(iterator, self._spec(use, include_block, include_iter, iter_name, block_name))

    def _spec(
        self,
        use: _core.NodeUse | None,
        include_block: bool,
        include_iter: bool,
        iter_name: str | None,
        block_name: str | None,
    ) -> Any:
        wait = self._named(iter_name or get_iter_handle_name(self.name)) if include_iter else None
        body = self._named(block_name or get_iter_block_name(self.name)) if include_block else None
        return (wait, body, ITER_COUNT_NAME, True, use)

    def _named(self, name: str) -> DFTracerAI:
        node = self._derived.get("\0" + name)
        if node is None:
            node = self._derived.setdefault("\0" + name, self._child(name, _LOOP + name))
        return node

    def start(self, metadata: bool = False) -> None:
        """Open an event that `stop` closes; with `metadata`, write a record of this moment at once."""
        if metadata:
            self._mark(START_METADATA_NAME)
        else:
            super().start()

    def stop(self, metadata: bool = False) -> None:
        """Close what `start` opened."""
        if metadata:
            self._mark(STOP_METADATA_NAME)
        else:
            super().stop()

    def _mark(self, moment: str) -> None:
        if self.enabled:
            name = f"{self.name}{CTX_SEPARATOR}{moment}"
            _core.log_metadata("CM", name, str(_core.time_ns() // 1000))

    def enable(self) -> None:
        """Record this node and everything below it."""
        self.set_enabled(True)

    def disable(self) -> None:
        """Do not record this node or anything below it."""
        self.set_enabled(False)

    def reset(self) -> DFTracerAI:
        """Start over; the args are kept."""
        return self

    def get_time(self) -> int:
        """Now, in us since the epoch, on the clock of the trace."""
        return _core.time_ns() // 1000

    # A node is pickled as its path in the tree, so that it is the same node in other processes.
    def __reduce__(self) -> tuple[Any, ...]:
        return _node_at, (self._path,)

    def __copy__(self) -> DFTracerAI:
        return self

    def __deepcopy__(self, memo: object) -> DFTracerAI:
        return self


class _Branch(DFTracerAI):
    """A node with its own children as attributes; outside the tree unless the tree places it."""

    _label: ClassVar[str]
    _events: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self,
        epoch: Any = None,
        step: Any = None,
        image_idx: Any = None,
        image_size: Any = None,
        enable: bool = True,
    ) -> None:
        self._grow(None, (_BRANCH + self._label,))
        self.update(epoch, step, image_idx, image_size)
        if not enable:
            self.set_enabled(False)

    def _grow(self, parent: DFTracerAI | None, path: tuple[str, ...]) -> Self:
        self._place(self._label, self._label, parent, path)
        self.create_children({name: name for name in self._events})
        return self

    @classmethod
    def _below(cls, root: DFTracerAI) -> Self:
        return cls.__new__(cls)._grow(root, (*root._path, cls._label))

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> DFTracerAI:
            raise AttributeError(f"{self.name!r} has no event {name!r}; make one with derive({name!r})")


class IO(DFTracerAI):
    """Storage access: events named `<category>.io.<operation>`."""

    open: DFTracerAI  # type: ignore[assignment]  # an event here, not Node.open
    read: DFTracerAI
    write: DFTracerAI
    close: DFTracerAI  # type: ignore[assignment]

    def __init__(
        self,
        *,
        cat: str,
        parent_name: str,
        epoch: Any = None,
        step: Any = None,
        image_idx: Any = None,
        image_size: Any = None,
        enable: bool = True,
    ) -> None:
        self._grow(None, cat, parent_name, (_STORAGE, cat, parent_name))
        self.update(epoch, step, image_idx, image_size)
        if not enable:
            self.set_enabled(False)

    def _grow(self, parent: DFTracerAI | None, cat: str, above: str, path: tuple[str, ...]) -> IO:
        self._place(f"{above}{CTX_SEPARATOR}io", cat, parent, path)
        self.create_children(
            {name: f"{self.name}{CTX_SEPARATOR}{name}" for name in ("open", "read", "write", "close")}
        )
        return self

    @classmethod
    def _below(cls, category: DFTracerAI) -> IO:
        return cls.__new__(cls)._grow(category, category.cat, category.name, (*category._path, "io"))


class Compute(_Branch):
    """Work of the model."""

    _label = "compute"
    _events = ("forward", "backward", "step")
    forward: DFTracerAI
    backward: DFTracerAI
    step: DFTracerAI


class Data(_Branch):
    """Making samples."""

    _label = "data"
    _events = ("preprocess", "item")
    preprocess: DFTracerAI
    item: DFTracerAI
    io: IO

    def _grow(self, parent: DFTracerAI | None, path: tuple[str, ...]) -> Self:
        super()._grow(parent, path)
        self.io = IO._below(self)
        return self


class DataLoader(_Branch):
    """Getting batches."""

    _label = "dataloader"
    _events = ("fetch",)
    fetch: DFTracerAI


class Communication(_Branch):
    """Communicating with other ranks."""

    _label = "comm"
    _events = (
        *("send", "receive", "barrier", "bcast", "reduce", "all_reduce", "gather", "all_gather"),
        *("scatter", "reduce_scatter", "all_to_all"),
    )
    send: DFTracerAI
    receive: DFTracerAI
    barrier: DFTracerAI
    bcast: DFTracerAI
    reduce: DFTracerAI
    all_reduce: DFTracerAI
    gather: DFTracerAI
    all_gather: DFTracerAI
    scatter: DFTracerAI
    reduce_scatter: DFTracerAI
    all_to_all: DFTracerAI


class Device(_Branch):
    """Moving data between host and device."""

    _label = "device"
    _events = ("transfer",)
    transfer: DFTracerAI


class Checkpoint(_Branch):
    """Saving and loading state."""

    _label = "checkpoint"
    _events = ("capture", "restart")
    capture: DFTracerAI
    restart: DFTracerAI
    io: IO

    def _grow(self, parent: DFTracerAI | None, path: tuple[str, ...]) -> Self:
        super()._grow(parent, path)
        self.io = IO._below(self)
        return self


class Pipeline(_Branch):
    """The phases of a run."""

    _label = "pipeline"
    _events = ("epoch", "train", "evaluate", "test")
    epoch: DFTracerAI
    train: DFTracerAI
    evaluate: DFTracerAI
    test: DFTracerAI


class Other(_Branch):
    """Anything else."""

    _label = "other"
    log: DFTracerAI
    io: IO

    def _grow(self, parent: DFTracerAI | None, path: tuple[str, ...]) -> Self:
        super()._grow(parent, path)
        self.create_children({"log": f"{self.name}{CTX_SEPARATOR}log"})
        self.io = IO._below(self)
        return self


class AI(_Branch):
    """The root of the tree."""

    _label = ROOT_NAME

    def _grow(self, parent: DFTracerAI | None, path: tuple[str, ...]) -> Self:
        super()._grow(parent, path)
        self.compute = Compute._below(self)
        self.data = Data._below(self)
        self.dataloader = DataLoader._below(self)
        self.comm = Communication._below(self)
        self.device = Device._below(self)
        self.checkpoint = Checkpoint._below(self)
        self.pipeline = Pipeline._below(self)
        self.other = Other._below(self)
        return self


def _node_at(path: tuple[str, ...]) -> DFTracerAI:
    node: DFTracerAI
    first = path[0] if path else ""
    if first == _STANDALONE:
        node, rest = DFTracerAI(cat=path[1], name=path[2]), path[3:]
    elif first == _STORAGE:
        node, rest = IO(cat=path[1], parent_name=path[2]), path[3:]
    elif first.startswith(_BRANCH):
        node, rest = next(c() for c in _Branch.__subclasses__() if c._label == first[1:]), path[1:]
    else:
        node, rest = ai, path
    for step in rest:
        if step.startswith(_DERIVED):
            node = node.derive(step[1:])
        elif step.startswith(_LOOP):
            node = node._named(step[1:])
        else:
            node = getattr(node, step)
    return node


ai = AI.__new__(AI)._grow(None, ())
compute, data, dataloader, comm = ai.compute, ai.data, ai.dataloader, ai.comm
device, checkpoint, pipeline = ai.device, ai.checkpoint, ai.pipeline
