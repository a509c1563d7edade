"""The native recorder, as Python sees it."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import CellType, CodeType, FunctionType, TracebackType
from typing import Any, Literal, Self, TypeVar, final, overload

_F = TypeVar("_F", bound=Callable[..., Any])
_T = TypeVar("_T")

class Node:
    """A named span of the annotation tree: context manager and decorator."""

    def __init__(self, name: str, cat: str, parent: Node | None = None) -> None: ...
    @property
    def name(self) -> str: ...
    @property
    def cat(self) -> str: ...
    @property
    def begun(self) -> int:
        """How often an event of this node was begun."""
    @property
    def enabled(self) -> bool: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None: ...
    async def __aenter__(self) -> Self: ...
    async def __aexit__(self, *exception: Any) -> None: ...
    def set_args(self, args: Mapping[str, Any]) -> None: ...
    def forget_args(self, names: list[str], /) -> None: ...
    def write_past(self, start_ns: int, duration_ns: int, /) -> None: ...
    def set_enabled(self, on: bool) -> None: ...
    def start(self) -> None: ...
    def stop(self) -> None: ...
    def close(self) -> bool: ...
    def open(self, args: Mapping[str, Any] | None = None) -> SuspendableSpan: ...
    @overload
    def __call__(self, target: _F, /) -> _F: ...
    @overload
    def __call__(
        self,
        target: None = None,
        /,
        *,
        args: Mapping[str, Any] | None = None,
        epoch: Any = None,
        step: Any = None,
        image_idx: Any = None,
        image_size: Any = None,
        enable: bool | None = None,
    ) -> NodeUse: ...
    def update(
        self,
        epoch: Any = None,
        step: Any = None,
        image_idx: Any = None,
        image_size: Any = None,
        args: Mapping[str, Any] | None = None,
    ) -> Self: ...

@final
class NodeUse:
    """One use of a node with arguments of its own, its on/off state fixed when made."""

    @property
    def node(self) -> Node: ...
    @property
    def _given(self) -> dict[str, Any] | None: ...
    async def __aenter__(self) -> Self: ...
    async def __aexit__(self, *exception: Any) -> None: ...
    @property
    def name(self) -> str: ...
    @property
    def cat(self) -> str: ...
    @property
    def enabled(self) -> bool: ...
    @property
    def init(self) -> NodeUse: ...
    def open(self) -> SuspendableSpan: ...
    def update(
        self,
        epoch: Any = None,
        step: Any = None,
        image_idx: Any = None,
        image_size: Any = None,
        args: Mapping[str, Any] | None = None,
    ) -> Self: ...
    def iter(self, iterator: _T, /, **options: Any) -> _T: ...
    def derive(self, name: str) -> NodeUse: ...
    def start(self, metadata: bool = False) -> None: ...
    def stop(self, metadata: bool = False) -> None: ...
    def enable(self) -> None: ...
    def disable(self) -> None: ...
    def reset(self) -> Self: ...
    def __getattr__(self, name: str) -> Any: ...
    def __call__(self, target: _F, /) -> _F: ...
    def __enter__(self) -> NodeUse: ...
    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None: ...

@final
class SuspendableSpan:
    """An open event that can be left and entered again (generators): life and active time."""

    def resume(self) -> None: ...
    def suspend(self) -> None: ...
    def finish(self, error: BaseException | None = None) -> None: ...

@final
class Wrapped:
    """A traced plain function."""

    __wrapped__: Callable[..., Any]
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...

def wrap(
    span: Node | NodeUse,
    function: Callable[..., Any],
    parameters: tuple[tuple[str, int, Any, bool], ...],
    self_attributes: bool,
    attributes: dict[str, Any],
) -> Wrapped:
    """Trace a plain function; `parameters` name the arguments that become args of its events."""

def disguise(function: Callable[..., Any], body: Callable[..., Any], attributes: dict[str, Any]) -> Wrapped:
    """An object that calls `body` and otherwise passes for `function`."""

def set_waiting(remember: Callable[[Node | NodeUse, Any], Any]) -> None:
    """Call `remember` for every target that is decorated while tracing is off."""

def set_decorator(decorate: Callable[[Node | NodeUse, Any], Any]) -> None:
    """What calling a Node or NodeUse with something to decorate does."""

def set_traceable_call(function: Callable[..., Any]) -> None:
    """What tracing compilers see in place of the native call of a Wrapped."""

@final
class LoopIterator(Iterator[_T]):
    def __next__(self) -> _T: ...
    def before_wait(self) -> None: ...
    def after_wait(self, error: BaseException | None) -> None: ...

def loop(
    iterable: Iterable[_T] | None,
    wait: Node | None,
    body: Node | None,
    count_key: str,
    count_as_string: bool,
    use: NodeUse | None = None,
) -> LoopIterator[_T]: ...

@final
class AutoEvent:
    """One kind of automatic event, and the nodes whose manual annotations replace it."""

    manual_nodes: tuple[Node, ...]
    def __new__(cls, name: str, cat: str, manual_nodes: tuple[Node, ...], phase: int = 0) -> Self:
        """`phase`: as native/module/boundary.hpp numbers them; 0: no phase of a device."""
    def begins(self) -> None:
        """It begins now, also for device events."""
    def ends(self) -> None:
        """It ends now, also for device events."""
    def by_hand(self) -> bool:
        """Whether the program has annotated it by hand since this was last checked."""
    def forget_annotations(self) -> None:
        """Ignore manual annotations made until now."""
    def log(self, start_ns: int, end_ns: int, /, *pairs: Any) -> int:
        """One event with these alternating keys and values, unless the program writes its own.

        An end of 0 is now. Returns the end.
        """
    def write(self, start_ns: int, end_ns: int, args: dict[str, Any], /) -> None:
        """The same with a dict."""

class LoaderPass:
    """One pass over a loader, as the step rule knows it."""

    iterator: Any
    has_workers: bool
    restarts: int
    def __new__(cls, loader: int, began: int, ready: int, restarts: int = 0) -> Self:
        """`began`, `ready`: when iter(loader) was called, and had returned."""
    def dies(self) -> None:
        """Its iterator is no longer referenced."""

@final
class Training:
    """The step rule of one thread; its methods are called where the program crosses a boundary."""

    facts: tuple[Any, ...] | None
    scaling: int
    scaled: bool
    muted: bool
    latest: LoaderPass | None
    fetching: bool
    in_backward: bool
    backwards: int
    def __new__(cls, main_thread: bool, /) -> Self: ...
    def backward_begins(self) -> None: ...
    def backward_ends(self, error: BaseException | None = None, /) -> None: ...
    def took_gradients(self, start_ns: int, end_ns: int, of_graph: bool, /) -> None:
        """`torch.autograd.grad` was called; `of_graph`: with create_graph."""
    def optimizer_made(self) -> None: ...
    def optimizer_begins(self, optimizer: Any, /) -> None: ...
    def optimizer_ends(self, optimizer: Any, skipped: bool = False, /) -> None: ...
    def interrupt(self, start_ns: int, end_ns: int, /) -> None:
        """Something else took this time (a checkpoint)."""
    def forward_begins(self) -> None: ...
    def forward_ends(self) -> None: ...
    def step_ends(self) -> None: ...
    def batch_ends(self) -> None: ...
    def evaluation_begins(self) -> None: ...
    def evaluation_ends(self) -> None: ...
    def resume(self, number: int, epoch: int, /) -> None:
        """Continue with this step in this epoch."""
    def finish(self, error: str | None = None, /) -> None:
        """Close what is open, marked with `error` if that is why."""
    def write(self, event: AutoEvent, start_ns: int, end_ns: int, /, **args: Any) -> None:
        """Another event of this thread, with the number of its step."""

def training() -> Training:
    """That of this thread, or of the thread whose backward it works for."""

def step_rule(
    events: tuple[AutoEvent, ...],
    gradients_on: Callable[[], bool],
    make: Callable[[], Training],
    compiler: dict[str, Any] = ...,
    /,
) -> None:
    """Set the rule's kinds of events, in the order of `Stage`, and what makes the training of a thread.

    `compiler` is the dict of `torch.compiler`: what torch exports is not a part of training.
    """

class ObservedCall:
    """A function of torch with what is recorded around it."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...

def around_backward(original: Callable[..., Any], /) -> ObservedCall:
    """Of `torch.autograd.backward`."""

def around_transform(original: Callable[..., Any], /) -> ObservedCall:
    """Of what takes gradients of a function for `torch.func`."""

def around_next(original: Callable[..., Any], pass_of: Callable[[Any], LoaderPass | None], /) -> ObservedCall:
    """Of `__next__` of loaders' iterators; `pass_of(iterator)` is called when another iterator yields."""

def around_fetch(
    original: Callable[..., Any],
    owner: type,
    together: Callable[[Any, Any], Any],
    item: AutoEvent,
    collate: AutoEvent,
    /,
) -> ObservedCall:
    """Of `fetch` of torch's fetcher of map-style data sets, whose type is `owner`.

    `together(dataset, dataset.__getitems__)` stands in for a data set that makes items together.
    """

def after_copy(
    event: AutoEvent,
    modes: Callable[[], int],
    without: Callable[[], Any],
    failed: Callable[[Exception], None],
    /,
) -> ObservedCall:
    """An observer for `watch_method`: writes `event` where source and result are on different devices.

    Where there are `modes()`, tensors are inspected inside `without()` only; exceptions go to `failed`.
    """

def set_task(batch: int | None, restarts: int, /) -> None:
    """The batch this worker makes, and how often its loader had begun again."""

def optimizer_step_begins(optimizer: Any, /) -> None:
    """Unless torch exports what runs, the optimizer of this thread's training begins a step."""

def optimizer_step_ends(optimizer: Any, /) -> None: ...
def forget_trainings() -> None:
    """Detach all trainings from their threads."""

def forget_training() -> None:
    """Detach this thread from its training."""

def no_optimizer(known: bool, /) -> None:
    """Whether the process is known to have no optimizer."""

def record_modules(on: bool, /) -> None:
    """An event of every call of a module, for as long as models are watched."""

def watch_models(module: type, /) -> None:
    """Watch the calls of this type's instances and of those below it."""

def watch_model_type(module: type, /) -> None:
    """Watch a type made after `watch_models`."""

def unwatch_models() -> None: ...
def mute_models(on: bool, /) -> None:
    """Whether to ignore calls of models in this process, which makes batches."""

def watch_compiled(set_eval_frame: Callable[[Any], Any], /) -> Callable[[Any], Any]:
    """Returns its replacement, which sees calls of compiled functions."""

def pause_threads() -> None:
    """End this module's threads before a fork; `resume_threads` starts them again."""

def resume_threads() -> None:
    """Start them again."""

def sample_own_code(prefixes: tuple[str, ...], /) -> None:
    """Sample what training threads do in their own code; files below the prefixes are not the program's."""

def watch_hangs(
    seconds: int, describe: Callable[[], tuple[str, str]], at_once: bool, by_records: bool = False, /
) -> None:
    """Watch for hangs, from the first step on or `at_once`; 0 seconds: stop watching.

    `by_records`: progress is seen from annotations only.
    """

def stop_describing_hangs() -> None:
    """The interpreter is about to end: do not call `describe` any more."""

def in_group(rank: int, /) -> None:
    """This process has joined a process group as this rank."""

def busy_begins(what: int, /) -> None:
    """Something that may take long begins: see dftracer.torch.hang."""

def busy_ends(what: int, /) -> None:
    """The same ends, which counts as progress."""

def stacks_of(pid: int, /) -> str:
    """JSON: what the threads of a process are doing, as far as the kernel lets us look."""

def own_code_samples() -> int:
    """How many samples there have been."""

def subscribe(boundary: int, subscriber: Callable[[bool, Any], None] | None, /) -> None:
    """Call `subscriber` at each such boundary (native/module/boundary.hpp), instead of the one before."""

def set_boundary_hook(hook: Callable[[int], None] | None, skip: int = 0, /) -> None:
    """Call `hook` where a phase of training begins or ends (native/module/boundary.hpp has the codes).

    The next `skip` boundaries pass without a call.
    """

def set_hook_mask(codes: int, /) -> None:
    """Call the hook only for these, a bit each; `set_boundary_hook` resets this to all."""

def keep_forever(it: object, /) -> None:
    """Never destroy it, not even when the interpreter ends."""

# Observing calls (native/module/observe.hpp) -------------------------------------------------------

def exchange_code(function: FunctionType, code: CodeType, closure: tuple[CellType, ...] | None, /) -> None:
    """Make a Python function run this code with this closure."""

def watch_method(
    descriptor: Any,
    observer: Callable[[Any, Any, int], None],
    plain: tuple[type, ...],
    uninteresting: type,
    /,
) -> bool:
    """Call `observer(self, result, start_ns)` after each call of a method that is written in C.

    Only where the result is another object than `self`, both have one of the `plain` types, and the first
    argument is not of the type `uninteresting`. Returns whether this method can be watched.
    """

def unwatch_method(descriptor: Any, /) -> None:
    """Stop observing its calls."""

# Session ------------------------------------------------------------------------------------------

def configure(settings: Mapping[str, Any]) -> None:
    """Hand over the resolved settings; nothing is opened."""

def initialize(path: str | None) -> bool:
    """Arm the session (the file appears with the first record); False if one is active already."""

def rename(path: str) -> None:
    """Give the armed session another file."""

def hide_io(hidden: bool) -> None:
    """Stop or resume recording the I/O of this thread; pairs nest."""

def set_data_dir(directories: str) -> None:
    """Trace the I/O of these directories (a colon list, or `all`) from now on."""

def finalize() -> None: ...
def flush() -> bool: ...
def active() -> bool: ...
def trace_path() -> str | None: ...
def run_id() -> str: ...
def identify_run(stem: str, /) -> str: ...
def given_names(path: str, /) -> str: ...
def spool_path(name: str, /) -> str:
    """Where traces meant for a store (`s3://bucket/job`) are kept first; other names stay as they are."""

def read_setting(name: str, raw: bytes, is_number: bool, /) -> bool | int | str:
    """The value that a text stands for; ValueError says what is wrong with it."""

def rank(environ: dict[str, str] | None, /) -> tuple[int | None, int | None, int | None, str | None]:
    """Rank, local rank and world size as a launcher left them there, and the launcher's name."""

def stats() -> dict[str, int]: ...
def last_row() -> dict[str, int] | None: ...
def row_sums() -> dict[str, int] | None: ...
def recover(directory: str, below: bool = False, /) -> list[str]:
    """Complete the traces of dead processes in `directory` from their rings; the files written to."""

def rings(directories: Sequence[str]) -> list[dict[str, Any]]:
    """The rings that processes have left: those of this user, those in `directories`, and for root all.

    This user's are in a directory of their own, or where DFTRACER_RING_DIR says.
    """

def recover_ring(ring: str, trace: str, apart: bool, surely_dead: bool) -> tuple[str, str, int]:
    """Put what a ring holds into `trace`, or `apart` into a new file: outcome, why it is kept, events."""

def ring_belongs_to(ring: str, trace: str) -> bool:
    """Whether the process of this ring wrote that trace."""

def peek_ring(ring: str) -> dict[str, Any] | None:
    """What the process of a ring has recorded and not finished writing; nothing is written or locked."""

def ring_paths(directories: Sequence[str]) -> list[str]:
    """Where rings of this user are."""

def discard_ring(ring: str) -> bool:
    """Discard what a ring of an ended process holds."""

# Records from elsewhere ---------------------------------------------------------------------------

def time_ns() -> int:
    """Now, in ns since the epoch, on the clock of the trace."""

def collective_begins(recorded: bool, /) -> None:
    """A call of torch.distributed begins on this thread; `recorded`: it has a record of its own."""

def collective_ends() -> int:
    """The number of its collective in its group; 0 if gloo was not seen to begin one."""

def skip_collectives(skip: bool, /) -> None:
    """Write no events of what is issued below Python: something else does."""

def wait_for_gloo_threads() -> None:
    """Wait, 50 ms at most, until no thread of gloo holds a collective that is over."""

def name_groups(name: str, /) -> None:
    """The name of the groups of gloo that this thread has just created."""

def open_collectives() -> list[tuple[str, str, int, int]]:
    """Operation, group, number and bytes of those that this process is in, the longest first."""

def enter_event() -> None: ...
def exit_event() -> None: ...
def log_event(
    name: str,
    cat: str,
    start_ns: int,
    duration_ns: int,
    args: Mapping[str, Any] | None = None,
    tid: int | None = None,
) -> None:
    """One complete event. A `tid` places it on another lane, outside the caller's nesting."""

def log_counter(name: str, cat: str, values: Mapping[str, float], ts_ns: int | None = None) -> None: ...
def log_metadata(
    kind: Literal["CM", "PR", "thread_name"], key: str, value: str, tid: int | None = None
) -> None:
    """A metadata record; `thread_name` with a `tid` names another lane."""

def string_hash(text: str | bytes) -> str: ...
def write_profiler_window(
    cat: str,
    activities: list[Any],
    getters: dict[str, Callable[[Any], Any]],
    flops: dict[int, int],
    trace_start_ns: int,
    offset_ns: int,
    hurry: bytearray,
) -> list[tuple[int, int, int]]:
    """Write every one of `activities` and empty the list; the lanes of devices met: lane, device, stream.

    Waits for room and drops nothing. While `hurry[0]` is 0, it takes the interpreter lock when nobody else
    wants it.
    """

def wait_for_turn(hurry: bytearray) -> None:
    """Return when nobody has wanted the interpreter lock for a moment; soon anyway, at once in a hurry."""

def profiler_args(text: str, on_device: bool) -> str:
    """Args (`,"key":value,...`) that a profiler's text about an operator, or a device's activity, gives."""
