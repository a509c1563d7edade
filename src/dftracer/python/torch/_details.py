"""What Kineto says of one activity beyond its times: ids, shapes, dtypes, stack, bytes."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from math import prod
from typing import Any

__all__ = [
    "ELEMENT_BYTES",
    "OperatorDetails",
    "args_text",
    "describe_inputs",
    "operator_args",
    "parse_object",
]

# Kineto names dtypes as C++ does.
ELEMENT_BYTES = {
    "float": 4,
    "double": 8,
    "c10::Half": 2,
    "c10::BFloat16": 2,
    "c10::Float8_e4m3fn": 1,
    "c10::Float8_e5m2": 1,
    "c10::Float8_e4m3fnuz": 1,
    "c10::Float8_e5m2fnuz": 1,
    "c10::Float8_e8m0fnu": 1,
    "c10::complex<c10::Half>": 4,
    "c10::complex<float>": 8,
    "c10::complex<double>": 16,
    "unsigned char": 1,
    "signed char": 1,
    "bool": 1,
    "short": 2,
    "short int": 2,
    "int": 4,
    "long": 8,
    "long int": 8,
    "long long": 8,
    "unsigned short": 2,
    "short unsigned int": 2,
    "uint16_t": 2,
    "unsigned int": 4,
    "uint32_t": 4,
    "unsigned long": 8,
    "long unsigned int": 8,
    "uint64_t": 8,
    "c10::qint8": 1,
    "c10::quint8": 1,
    "c10::qint32": 4,
}
_NOT_TENSORS = frozenset({"", "Scalar", "ScalarList", "GenericList", "None"})
_CACHE_LIMIT = 20_000
_encode = json.JSONEncoder(separators=(",", ":")).encode


def describe_inputs(dims: list[Any], types: list[str]) -> dict[str, Any]:
    """`input_size` = elements of all input tensors; `input_bytes` only where every dtype is known."""
    elements = 0
    size: int | None = 0
    for shape, kind in zip(dims, types, strict=False):
        if kind in _NOT_TENSORS:
            continue
        if shape and isinstance(shape[0], list):
            count = sum(prod(one) for one in shape)
            width = None
        else:
            count = prod(shape)
            width = ELEMENT_BYTES.get(kind)
            # Lists of tensors come without their dtypes; an empty list looks like a scalar tensor.
            if kind == "TensorList":
                count = 0
        elements += count
        size = size + count * width if size is not None and width is not None else None
    args: dict[str, Any] = {"input_size": elements}
    if size is not None:
        args["input_bytes"] = size
    args["shapes"] = json.dumps(dims, separators=(",", ":"))
    args["dtypes"] = json.dumps(types, separators=(",", ":"))
    return args


class OperatorDetails:
    """Args made from the `metadata_json` of operators; equal texts are parsed once."""

    def __init__(self) -> None:
        self.known: dict[str, str] = {}

    def learn(self, text: str) -> str:
        """Args of an operator's metadata, from which the numbers of this one call have been cut out."""
        return self.keep(text, operator_args(text))

    def keep(self, text: str, args: Mapping[str, Any]) -> str:
        """Remember `args` for `text`."""
        if len(self.known) >= _CACHE_LIMIT:
            self.known.clear()
        made = self.known[text] = args_text({"input_size": 0, **args})
        return made


def args_text(args: Mapping[str, Any]) -> str:
    """Args as the recorder takes them ready-made: `,"key":value,…`."""
    return "," + _encode(args)[1:-1] if args else ""


def parse_object(text: str) -> dict[str, Any]:
    """Kineto's `"key": value, …` as a dict; values that are not valid JSON (names unescaped) are left out."""
    text = text.strip(", ")
    if not text:
        return {}
    try:
        parsed = json.loads("{" + text + "}", strict=False)
    except ValueError:
        return _salvage(text)
    return parsed if isinstance(parsed, dict) else {}


_SIMPLE_FIELD = re.compile(
    r'"(?P<key>[\w #.%/]+)": '
    r'(?P<value>-?\d+(?:\.\d+)?|true|false|"[^"\\]*"|\[[\[\]\d, ]*\]|\["[^\\]*?"\])(?=, "|$)'
)


def _salvage(text: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for match in _SIMPLE_FIELD.finditer(text):
        try:
            found[match["key"]] = json.loads(match["value"])
        except ValueError:
            continue
    return found


def operator_args(text: str) -> dict[str, Any]:
    fields = parse_object(text)
    args: dict[str, Any] = {}
    dims = fields.pop("Input Dims", None)
    types = fields.pop("Input type", None)
    if isinstance(dims, list) and isinstance(types, list):
        args.update(describe_inputs(dims, types))
    for key, name in _RENAMED.items():
        value = fields.get(key)
        if value not in (None, ""):
            args[name] = value
    return args


# Concrete inputs and strides are left out: they double the trace and no reader asks for them.
_RENAMED = {
    "Fwd thread id": "forward_thread",
    "Call stack": "stack",
    "Module Hierarchy": "module",
    "Python id": "python_id",
    "Python parent id": "python_parent_id",
    "Python module id": "python_module_id",
    "Python thread": "python_thread",
    "Collective name": "collective",
    "dtype": "dtype",
    "In msg nelems": "in_elements",
    "Out msg nelems": "out_elements",
    "Group size": "group_size",
    "Process Group Name": "process_group",
    "Process Group Ranks": "process_group_ranks",
    "Rank": "rank",
    "Src Rank": "src_rank",
    "Dst Rank": "dst_rank",
}
