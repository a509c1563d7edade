"""Kineto's metadata text: reading it, also where it is not quite JSON."""

from __future__ import annotations

import json

from dftracer.python.torch._details import OperatorDetails, describe_inputs, operator_args


def test_a_scalar_tensor_is_one_element_and_a_number_none() -> None:
    assert describe_inputs([[], []], ["float", "Scalar"])["input_size"] == 1


def test_lists_of_tensors_count_but_have_no_known_bytes() -> None:
    args = describe_inputs([[[2, 3], [4]], [5]], ["TensorList", "float"])
    assert args["input_size"] == 6 + 4 + 5
    assert "input_bytes" not in args


def test_half_precision_is_two_bytes() -> None:
    assert describe_inputs([[10]], ["c10::BFloat16"])["input_bytes"] == 20


def test_a_text_met_again_is_not_parsed_again() -> None:
    details = OperatorDetails()
    text = '"Fwd thread id": 1, "Input type": ["float"], "Input Dims": [[2]]'
    made = details.learn(text)
    assert details.known[text] is made
    assert json.loads("{" + made[1:] + "}")["input_size"] == 2


def test_an_operator_without_inputs_has_size_zero() -> None:
    assert OperatorDetails().learn("") == ',"input_size":0'


def test_text_that_is_not_json_still_gives_its_shapes() -> None:
    text = '"Call stack": "a "quoted" name;", "Input type": ["float"], "Input Dims": [[3, 4]]'
    assert operator_args(text)["input_size"] == 12
