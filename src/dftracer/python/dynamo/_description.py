"""Names and args of an operation of a graph."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_KINDS = {"call_function": "function", "call_module": "module", "call_method": "method"}
_SELF = re.compile(r"^L\['self'\]\.?|^L__self___?|^self\.")
_ROOT = re.compile(r"^[LG]\['([^']*)'\]")
_SOURCE_LINE = re.compile(r'File "([^"]+)", line (\d+)')


def is_operation(node: Any) -> bool:
    return node.op in _KINDS


def event_name(node: Any) -> str:
    """`function.convolution.default`, `module.layers.0`, `method.view`."""
    return f"{_KINDS[node.op]}.{_target_name(node.target)}"


def _target_name(target: Any) -> str:
    if isinstance(target, str):
        return target
    name = getattr(target, "__name__", None)
    return name if isinstance(name, str) else str(target)


def forward_names(nodes: Any) -> dict[int, str]:
    """Autograd's sequence number -> the forward operation that took it."""
    names: dict[int, str] = {}
    for node in nodes:
        if is_operation(node):
            number = node.meta.get("seq_nr")
            # An operation outside autograd shows the number of the one before it: the first is the owner.
            if number is not None:
                names.setdefault(number, event_name(node))
    return names


class GradRegions:
    """Which operations the program runs with gradients on: the mode of the call, except `no_grad` blocks."""

    def __init__(self, graph_module: Any, enabled: bool) -> None:
        self._default = enabled
        self._exceptions: set[str] = set()
        current = enabled
        for node in graph_module.graph.nodes:
            if node.op == "call_function" and _target_name(node.target) == "_set_grad_enabled":
                current = bool(node.args[0])
            elif current != enabled:
                self._exceptions.update(_source_names(node.meta))

    def at(self, node: Any) -> int:
        inside = not self._exceptions.isdisjoint(_source_names(node.meta)) if self._exceptions else False
        return int(self._default != inside)


def _source_names(meta: Mapping[str, Any]) -> tuple[str, ...]:
    stack = meta.get("source_fn_stack")
    return (str(stack[-1][0]),) if stack else ()


def describe(
    node: Any, phase: str, grad_enabled: int, graph: int, forwards: Mapping[int, str]
) -> dict[str, Any]:
    """The args of an operation's event: fixed when the graph is compiled, free when it is called."""
    meta = node.meta
    args: dict[str, Any] = {
        "grad_enabled": grad_enabled,
        "phase": phase,
        "op_type": node.op,
        "target": _qualified(node.target),
    }
    backward = phase == "backward"
    path, kind = _module(
        meta.get("nn_module_stack") or (meta.get("fwd_nn_module_stack") if backward else None)
    )
    if path:
        args["module"] = path
    if kind:
        args["module_type"] = kind
    if backward:
        forward = forwards.get(meta.get("seq_nr", -1))
        if forward is not None:
            args["forward_op"] = forward
    shapes, dtypes = _tensors([value.meta.get("val") for value in node.all_input_nodes])
    args["shapes"] = shapes
    args["dtypes"] = dtypes
    output_shapes, output_dtypes = _tensors([meta.get("val")])
    if output_shapes:
        args["output_shapes"] = output_shapes
        args["output_dtypes"] = output_dtypes
    line = _source_line(meta.get("stack_trace"))
    if line:
        args["source"] = line
    args["graph"] = graph
    return args


def _qualified(target: Any) -> str:
    """`aten.add.Tensor`, `_operator.getitem`, or the path of a module."""
    if not callable(target) or hasattr(target, "_schema"):
        return str(target)
    module = getattr(target, "__module__", None)
    name = _target_name(target)
    return f"{module}.{name}" if module else name


def _module(stack: Any) -> tuple[str, str]:
    if not stack:
        return "", ""
    path, kind = list(stack.values())[-1][:2]
    kind_name = kind if isinstance(kind, str) else getattr(kind, "__name__", str(kind))
    return _module_path(str(path)), kind_name.rsplit(".", 1)[-1]


def _module_path(path: str) -> str:
    """`L['self'].layers[0]._modules['fc']` as the program writes it: `layers.0.fc`."""
    path = _SELF.sub("", path)
    path = _ROOT.sub(r"\1", path)
    path = re.sub(r"\.?_modules\['([^']*)'\]", r".\1", path)
    path = re.sub(r"\['?([^'\]]*)'?\]", r".\1", path)
    return path.strip(".")


def _tensors(values: list[Any]) -> tuple[str, str]:
    """Shapes and dtypes as text: sizes of dynamic dimensions are symbols, not numbers."""
    shapes: list[str] = []
    dtypes: list[str] = []
    for value in values:
        for one in value if isinstance(value, tuple | list) else (value,):
            if hasattr(one, "shape") and hasattr(one, "dtype"):
                shapes.append("[" + ",".join(map(str, one.shape)) + "]")
                dtypes.append(str(one.dtype).removeprefix("torch."))
    return ",".join(shapes), ",".join(dtypes)


def _source_line(trace: Any) -> str:
    found = _SOURCE_LINE.findall(trace) if isinstance(trace, str) else []
    return f"{found[-1][0]}:{found[-1][1]}" if found else ""


# --- For programs that know these names from other bindings


@dataclass
class CallStackRecord:
    """One operation of a compiled graph, as a program may keep it."""

    op_name: str
    op_type: str
    target: str
    timestamp_us: int
    grad_enabled: bool


def create_detailed_op_name(node: Any, gm: Any) -> str:
    """The event name of a graph's node; for inputs and outputs, which have no event, their own name."""
    return event_name(node) if is_operation(node) else str(node.name)
