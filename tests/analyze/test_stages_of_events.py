"""What an event means: its class by category and name, and the stage of a class inside another stage."""

from __future__ import annotations

import pytest

from dftracer.analyze.stages import CLASSES, RULES, STAGE_INDEX, STAGES, class_of
from dftracer.format._io_roles import ROLES
from dftracer.format.io_calls import role_of
from dftracer.load.rows import STAGES as ROW_STAGES

CLASS_BY_NAME = {
    "dataloader": {
        "fetch_wait": "fetch.iter fetch x.iter",
        "block": "fetch.block",
        "inherit": "fetch.init sampler",
    },
    "data": {
        "item": "item data load",
        "preprocess": "preprocess augment decode other",
        "collate": "collate",
        "read": "io.read read x.io",
        "inherit": "item.init",
    },
    "compute": {
        "forward": "forward forward.init Forward",
        "backward": "backward",
        "update": "step step.init",
        "any_compute": "x",
        "inherit": "x.init",
    },
    "pipeline": {"container": "train evaluate test epoch.block"},
    "POSIX": {
        "io_read": "open openat read pread open64 __read_chk preadv64v2 fxstat unknown",
        "io_write": "write fsync mkdir",
        "process": "fork execve clone",
    },
    "STDIO": {"io_read": "fread fopen fread_unlocked", "io_write": "fwrite fflush"},
    "HDF5": {"io_read": "read", "io_write": "write", "process": "fork"},
    "CUDA": {
        "wait_for_device": "cudaDeviceSynchronize",
        "copy": "cudaMemcpyAsync",
        "launch": "cudaGraphLaunch",
        "skip": "cudaMalloc",
    },
    "kineto": {
        "block": "ProfilerStep#3",
        "fetch_wait": "enumerate(DataLoader)#x",
        "optimizer": "Optimizer.step#Adam",
        "comm": "nccl:all_reduce",
        "inherit": "aten::add",
    },
    "pp": {
        "forward": "DistributedDataParallel.forward",
        "backward": "x_backward",
        "wait_for_device": "cudaStreamSynchronize",
        "copy": "cudaMemcpyAsync",
    },
    "dynamo": {"model_op": "compile f"},
    "comm": {"comm": "forward read", "wait_for_peers": "wait"},
    "communication": {"comm": "forward read", "wait_for_peers": "wait"},
    "checkpoint": {"checkpoint": "forward read wait"},
    "device": {"transfer": "forward read wait"},
    "dftracer": {"skip": "forward read wait"},
    "device_time": {"skip": "forward read wait"},
    "sample": {"skip": "forward read wait"},
    "": {"inherit": "f"},
}

# Inside these stages; inside all others an event of the class takes the stage that is around it.
ANYWHERE = " ".join(STAGES)
STAGE_INSIDE = {
    "item": {"preprocess": ANYWHERE},
    "update": {"optimizer": ANYWHERE},
    "any_compute": {"forward": ANYWHERE.replace("backward ", "").replace("optimizer ", "")},
    "block": {"unexplained": ANYWHERE},
    "container": {},
    "io_read": {"read": "fetch_wait preprocess collate other unexplained"},
    "io_write": {"other": "unexplained"},
    "process": {"other": "unexplained"},
    "inherit": {"other": "unexplained"},
    "model_op": {"forward": "unexplained"},
    "wait_for_device": {"sync": "forward backward optimizer other unexplained"},
    "wait_for_peers": {"comm": "other unexplained"},
    "copy": {"transfer": "forward backward optimizer other unexplained"},
    "launch": {"forward": "unexplained"},
    "skip": {},
}


@pytest.mark.parametrize("category", CLASS_BY_NAME)
def test_the_class_of_an_event(category: str) -> None:
    expected = {name: cls for cls, names in CLASS_BY_NAME[category].items() for name in names.split()}
    assert {name: CLASSES[class_of(category, name)] for name in expected} == expected


def test_each_traced_call_has_one_role() -> None:
    for name in ROLES:
        cls = CLASSES[class_of("POSIX", name)]
        role = role_of(name)
        assert (cls == "process") == (role == "process"), name
        assert cls == "io_write" if role == "write" else True, name
        assert cls == "io_read" if role in {"read", "close"} else True, name


def test_names_with_blanks_zeros_and_half_characters_have_a_class() -> None:
    assert CLASSES[class_of("pp", "Memcpy HtoD (Pageable -> Device)")] == "transfer"
    assert CLASSES[class_of("data", "\0collate")] == "collate"
    assert CLASSES[class_of("data", "collate \ud800")] == "collate"


@pytest.mark.parametrize("auto", [False, True])
@pytest.mark.parametrize("cls", CLASSES)
def test_the_stage_of_a_class_inside_each_stage(cls: str, auto: bool) -> None:
    if cls in STAGES:
        expected = dict.fromkeys(STAGES, cls)
    else:
        inside = {at: stage for stage, places in STAGE_INSIDE[cls].items() for at in places.split()}
        expected = {at: inside.get(at, at) for at in STAGES}
    if auto and cls in {"io_write", "process"}:  # nobody annotates: the program's own code, named by its line
        expected["unexplained"] = "own_code"
    found = {at: STAGES[RULES[auto][CLASSES.index(cls), STAGE_INDEX[at]]] for at in STAGES}
    assert found == expected


def test_rows_have_the_stages_of_reports() -> None:
    assert ROW_STAGES == STAGES
