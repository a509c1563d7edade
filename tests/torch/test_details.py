"""What Kineto's text about one activity says: sizes, dtypes, ids, stack."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dftracer import _core
from dftracer.python import torch as windows


def operator_args(text: str) -> dict[str, Any]:
    made: dict[str, Any] = json.loads("{" + _core.profiler_args(text, False)[1:] + "}")
    return made


def device_args(text: str) -> dict[str, Any]:
    made: dict[str, Any] = json.loads("{" + _core.profiler_args(text, True)[1:] + "}")
    return made


def inputs(dims: str, types: str) -> dict[str, Any]:
    return operator_args(f'"Input type": {types}, "Input Strides": [[1]], "Input Dims": {dims}')


def test_input_size_is_elements_of_tensors_only() -> None:
    args = inputs("[[4, 8], [], [16], []]", '["float", "Scalar", "long int", "ScalarList"]')
    assert args["input_size"] == 32 + 16
    assert args["input_bytes"] == 32 * 4 + 16 * 8
    assert args["shapes"] == "[[4,8],[],[16],[]]"
    assert json.loads(args["dtypes"]) == ["float", "Scalar", "long int", "ScalarList"]


def test_a_tensor_without_dimensions_has_one_element() -> None:
    assert inputs("[[], []]", '["float", ""]')["input_size"] == 1


def test_lists_of_tensors_are_counted_but_have_no_known_bytes() -> None:
    args = inputs("[[[2, 3], [4]], [5]]", '["TensorList", "float"]')
    assert args["input_size"] == 6 + 4 + 5
    assert "input_bytes" not in args
    assert inputs("[[]]", '["TensorList"]')["input_size"] == 0


def test_half_precision_is_two_bytes() -> None:
    assert inputs("[[10]]", '["c10::BFloat16"]')["input_bytes"] == 20


def test_an_unknown_dtype_has_elements_but_no_bytes() -> None:
    args = inputs("[[10]]", '["c10::NewType"]')
    assert args["input_size"] == 10
    assert "input_bytes" not in args


def test_an_operator_without_inputs_has_size_zero() -> None:
    assert operator_args("") == {"input_size": 0}


def test_text_that_is_not_json_still_gives_its_fields() -> None:
    text = (
        '"Call stack": "a "quoted" name\n;", "Concrete Inputs": ["", "a]"b"], '
        '"Input type": ["float"], "Input Dims": [[3, 4]]'
    )
    args = operator_args(text)
    assert args["input_size"] == 12
    assert args["stack"] == 'a "quoted" name\n;'


def test_escapes_are_kept_as_they_are() -> None:
    assert operator_args(r'"Call stack": "a\n\"b\" \u00e4 \\"')["stack"] == 'a\n"b" ä \\'


def test_a_collective_keeps_its_numbers_and_group() -> None:
    args = operator_args(
        '"Collective name": "allreduce", "dtype": "Float", "In msg nelems": 1024, "Out msg nelems": 1024, '
        '"Group size": 2, "Process Group Name": "0", "Process Group Ranks": [0, 1], "Rank": 1'
    )
    assert args["collective"] == "allreduce"
    assert (args["in_elements"], args["group_size"], args["process_group_ranks"]) == (1024, 2, [0, 1])
    assert (args["process_group"], args["rank"], args["dtype"]) == ("0", 1, "Float")


def test_a_kernel_has_grid_and_block_as_text() -> None:
    args = device_args(
        '"device": 0, "context": 1, "stream": 7, "warps per SM": 1.93, "grid": [64, 1, 1], '
        '"block": [128, 1, 1], "est. achieved occupancy %": 3, "registers per thread": 16, "shared memory": 0'
    )
    assert args == {
        "grid": "64,1,1",
        "block": "128,1,1",
        "occupancy_percent": 3,
        "registers": 16,
        "shared_memory": 0,
    }


def test_a_copy_has_its_bytes_and_rate() -> None:
    args = device_args('"stream": 7, "bytes": 1048576, "memory bandwidth (GB/s)": 910.2222222222222')
    assert args == {"bytes": 1048576, "bandwidth_gb_s": 910.2222222222222}


def test_numbers_that_are_no_json_are_left_out() -> None:
    assert device_args('"bytes": nan, "memory bandwidth (GB/s)": inf, "cbid": 211') == {"cbid": 211}


def test_cut_text_gives_what_is_whole() -> None:
    assert device_args('"cbid": 211, "grid": [64, 1') == {"cbid": 211}
    assert operator_args('"Sequence number"') == {"input_size": 0}


def test_a_window_that_is_not_written_is_told_once(capfd: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        windows._report(OSError("no space"))
    assert capfd.readouterr() == ("", "dftracer: a profiler window was not written: OSError: no space\n")
