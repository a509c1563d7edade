"""Everything programs written for the public API import is there."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from support.process import Run

PUBLIC = [
    "dftracer",
    "dft_fn",
    "ai",
    "DFTracerAI",
    "Dynamo",
    "dynamo",
    "dftracer_dynamo_backend",
    "create_backend",
    "compute",
    "data",
    "dataloader",
    "comm",
    "device",
    "checkpoint",
    "pipeline",
    "ProfileCategory",
    "ComputeEvent",
    "DataEvent",
    "DataLoaderEvent",
    "CommunicationEvent",
    "DeviceEvent",
    "CheckpointEvent",
    "PipelineEvent",
    "IOEvent",
    "TagValue",
    "TagType",
    "TagDType",
    "get_iter_block_name",
    "get_iter_handle_name",
    "BLOCK_NAME",
    "ITER_NAME",
    "INIT_NAME",
    "ITER_COUNT_NAME",
    "CTX_SEPARATOR",
    "DFTRACER_ENABLE",
    "DFTRACER_INIT_PRELOAD",
    "DFTRACER_LOG_LEVEL",
]

TREE = {
    "compute": ["forward", "backward", "step"],
    "data": ["preprocess", "item"],
    "dataloader": ["fetch"],
    "comm": [
        "send",
        "receive",
        "barrier",
        "bcast",
        "reduce",
        "all_reduce",
        "gather",
        "all_gather",
        "scatter",
        "reduce_scatter",
        "all_to_all",
    ],
    "device": ["transfer"],
    "checkpoint": ["capture", "restart"],
    "pipeline": ["epoch", "train", "evaluate", "test"],
}


@pytest.mark.parametrize("enable", [True, False])
def test_every_documented_name_imports(enable: bool, program: Callable[..., Run]) -> None:
    """`from dftracer.python import <name>` works for each, with tracing on and off."""
    run = program(
        f"""
        for name in {PUBLIC!r}:
            exec(f"from dftracer.python import {{name}}")
        """,
        enable=enable,
    )
    assert run.stderr == ""
    assert run.written == []


@pytest.mark.parametrize("module", ["dftracer.logger", "dftracer.python.logger"])
def test_older_import_paths(module: str, program: Callable[..., Run]) -> None:
    """Older clients import the core names from `logger`."""
    program(
        f"""
        import {module} as old
        import dftracer.python as new
        assert old.dftracer is new.dftracer
        assert old.dft_fn is new.dft_fn
        """
    )


def test_probing_clients_find_the_native_functions(program: Callable[..., Run]) -> None:
    """`dftracer.dftracer` has the functions of the public native module."""
    program(
        """
        from dftracer import dftracer as native
        for name in ("initialize", "get_time", "enter_event", "exit_event", "log_event",
                     "log_metadata_event", "finalize"):
            assert callable(getattr(native, name)), name
        """
    )


def test_star_import_brings_no_module_of_others(program: Callable[..., Run]) -> None:
    """`__all__` is explicit and honest."""
    program(
        """
        import dftracer.python as package
        import types
        assert sorted(set(package.__all__)) == sorted(package.__all__)
        for name in package.__all__:
            value = getattr(package, name)
            assert not isinstance(value, types.ModuleType) or value.__name__.startswith("dftracer."), name
        """
    )


def test_constants_and_name_helpers(program: Callable[..., Run]) -> None:
    """The spelling of derived names is public."""
    program(
        """
        from dftracer.python import (BLOCK_NAME, CTX_SEPARATOR, INIT_NAME, ITER_COUNT_NAME, ITER_NAME,
                                     get_iter_block_name, get_iter_handle_name)
        assert (BLOCK_NAME, ITER_NAME, INIT_NAME) == ("block", "iter", "init")
        assert (ITER_COUNT_NAME, CTX_SEPARATOR) == ("count", ".")
        assert get_iter_block_name("fetch") == "fetch.block"
        assert get_iter_handle_name("fetch") == "fetch.iter"
        assert get_iter_block_name("fetch.block") == "fetch.block"
        assert get_iter_handle_name("fetch.iter") == "fetch.iter"
        """
    )


def test_enums_spell_the_tree(program: Callable[..., Run]) -> None:
    """Each enum names the nodes of its branch; `str` gives the spelling in the trace."""
    enums = {
        "compute": "ComputeEvent",
        "data": "DataEvent",
        "dataloader": "DataLoaderEvent",
        "comm": "CommunicationEvent",
        "device": "DeviceEvent",
        "checkpoint": "CheckpointEvent",
        "pipeline": "PipelineEvent",
    }
    program(
        f"""
        import dftracer.python as d
        assert {{str(c).lower() for c in d.ProfileCategory}} >= set({list(TREE)!r})
        for branch, enum in {enums!r}.items():
            spelled = {{str(e) for e in getattr(d, enum)}}
            assert spelled >= set({TREE!r}[branch]), (branch, spelled)
        assert {{str(e) for e in d.IOEvent}} >= {{"open", "read", "write", "close"}}
        """
    )


def test_category_objects_are_the_branches(program: Callable[..., Run]) -> None:
    """`from dftracer.python import compute` is `ai.compute`."""
    program(
        f"""
        import dftracer.python as d
        for branch in {list(TREE)!r}:
            assert getattr(d, branch) is getattr(d.ai, branch), branch
        """
    )


def test_each_node_writes_its_name_and_category(traced: Callable[..., Run]) -> None:
    """cat = branch, name = leaf, for every node of the documented table."""
    run = traced(
        f"""
        for branch, leaves in {TREE!r}.items():
            with getattr(ai, branch):
                for leaf in leaves:
                    with getattr(getattr(ai, branch), leaf):
                        pass
        """
    )
    expected = {(branch, leaf) for branch, leaves in TREE.items() for leaf in [branch, *leaves]}
    events = run.trace.events
    assert {(e.cat, e.name) for e in events} == expected
    assert len(events) == len(expected)


def test_io_nodes(traced: Callable[..., Run]) -> None:
    """I/O below data and checkpoint has names of its own."""
    run = traced(
        """
        for branch in (ai.data, ai.checkpoint):
            for leaf in "open read write close".split():
                with getattr(branch.io, leaf):
                    pass
        with ai.other.log:
            pass
        with ai.other.io:
            pass
        """
    )
    found = {(e.cat, e.name) for e in run.trace.events}
    for branch in ("data", "checkpoint"):
        for leaf in ("open", "read", "write", "close"):
            assert (branch, f"{branch}.io.{leaf}") in found
    assert len(found) == 10


def test_ai_itself(traced: Callable[..., Run]) -> None:
    """`@ai` gives cat and name `ai_root`."""
    run = traced(
        """
        @ai
        def f():
            return 3
        assert f() == 3
        with ai:
            pass
        """
    )
    assert [(e.cat, e.name) for e in run.trace.events] == [("ai_root", "ai_root")] * 2
