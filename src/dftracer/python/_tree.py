"""`ai`: one vocabulary of annotations for everything a training job does."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from dftracer import _core, _session
from dftracer.python import _events
from dftracer.python._names import CTX_SEPARATOR, INIT_NAME, ITER_COUNT_NAME
from dftracer.python._names import get_iter_block_name as _block_name
from dftracer.python._names import get_iter_handle_name as _iter_name

__all__ = ["DFTracerAI", "ai", "checkpoint", "comm", "compute", "data", "dataloader", "device", "pipeline"]

_ROOT_NAME = "ai_root"
_TRACING = _session.SETTINGS.enable
_Source = TypeVar("_Source")

# Marks in the path of a node: not of the tree; made by derive(); an event of a loop. Others are attributes.
_STANDALONE, _DERIVED, _LOOP = "\0", "\1", "\2"


class DFTracerAI(_core.Node):
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
            self._derived[name] = child
        return child

    @property
    def init(self) -> DFTracerAI:
        """The event of setting this thing up."""
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
        use: _core.Use | None,
        iterator: _Source,
        include_block: bool = True,
        include_iter: bool = True,
        iter_name: str | None = None,
        block_name: str | None = None,
    ) -> _Source:
        from dftracer.python._iterables import looped  # noqa: PLC0415 - for those who loop

        if not _TRACING:
            return looped(iterator, None)
        wait = self._named(iter_name or _iter_name(self.name)) if include_iter else None
        body = self._named(block_name or _block_name(self.name)) if include_block else None
        return looped(iterator, (wait, body, ITER_COUNT_NAME, True, use))

    def _named(self, name: str) -> DFTracerAI:
        node = self._derived.get("\0" + name)
        if node is None:
            node = self._child(name, _LOOP + name)
            self._derived["\0" + name] = node
        return node

    def start(self, metadata: bool = False) -> None:
        """Open an event that `stop` closes; with `metadata`, a record of this moment at once."""
        if metadata:
            self._mark("start")
        else:
            super().start()

    def stop(self, metadata: bool = False) -> None:
        """Close what `start` opened."""
        if metadata:
            self._mark("end")
        else:
            super().stop()

    def _mark(self, moment: str) -> None:
        if self.enabled:
            name = f"{self.name}{CTX_SEPARATOR}{moment}"
            _core.log_metadata("CM", name, str(_core.time_ns() // 1000))

    def enable(self) -> None:
        """Record this node and all below it."""
        self.set_enabled(True)

    def disable(self) -> None:
        """Do not record this node nor any below it."""
        self.set_enabled(False)

    def reset(self) -> DFTracerAI:
        """Begin anew; the args stay."""
        return self

    def get_time(self) -> int:
        """Now, in us since the epoch, on the clock of the trace."""
        return _core.time_ns() // 1000

    # A node goes to other processes as the way to it, so that it is the same node there.
    def __reduce__(self) -> tuple[Any, ...]:
        return _node_at, (self._path,)

    def __copy__(self) -> DFTracerAI:
        return self

    def __deepcopy__(self, memo: object) -> DFTracerAI:
        return self


class _Category(DFTracerAI):
    """A category and its events as attributes."""

    def __getattr__(self, name: str) -> DFTracerAI:
        # For type checkers: the attributes are set by create_children.
        raise AttributeError(f"{self.name!r} has no event {name!r}; make one with derive({name!r})")

    def __init__(self, root: DFTracerAI, category: _events.ProfileCategory, events: Iterable[str]) -> None:
        self._place(category.value, category.value, root, (category.value,))
        self.create_children({event: event for event in events})

    def add_io(self) -> None:
        """Storage access as events named `<category>.io.<operation>`."""
        self.create_children({"io": f"{self.name}{CTX_SEPARATOR}io"})
        io: DFTracerAI = self.io
        io.create_children({word: f"{io.name}{CTX_SEPARATOR}{word}" for word in _words(_events.IOEvent)})


def _node_at(path: tuple[str, ...]) -> DFTracerAI:
    if path[:1] == (_STANDALONE,):
        node, rest = DFTracerAI(cat=path[1], name=path[2]), path[3:]
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


def _words(words: Iterable[Any]) -> list[str]:
    return [word.value for word in words]


class _AI(DFTracerAI):
    """The root of the tree."""

    def __init__(self) -> None:
        self._place(_ROOT_NAME, _ROOT_NAME, None, ())
        category = _events.ProfileCategory
        self.compute = _Category(self, category.COMPUTE, _words(_events.ComputeEvent))
        self.data = _Category(self, category.DATA, _words(_events.DataEvent))
        self.dataloader = _Category(self, category.DATALOADER, _words(_events.DataLoaderEvent))
        self.comm = _Category(self, category.COMM, _words(_events.CommunicationEvent))
        self.device = _Category(self, category.DEVICE, _words(_events.DeviceEvent))
        self.checkpoint = _Category(self, category.CHECKPOINT, _words(_events.CheckpointEvent))
        self.pipeline = _Category(self, category.PIPELINE, _words(_events.PipelineEvent))
        self.other = _Category(self, category.OTHER, ())
        self.other.create_children({"log": "other.log"})
        for with_io in (self.data, self.checkpoint, self.other):
            with_io.add_io()


ai = _AI()
compute, data, dataloader, comm = ai.compute, ai.data, ai.dataloader, ai.comm
device, checkpoint, pipeline = ai.device, ai.checkpoint, ai.pipeline
